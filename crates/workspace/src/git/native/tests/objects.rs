//! Packs and objects that are too many or too large are left to git.

use std::io::{self, Read};

use sha1::{Digest, Sha1};

use super::*;

/// More than a chain of deltas may have.
const COMMITS: usize = 290;
/// Kinds of entries of a pack.
const COMMIT: u8 = 1;
const OFFSET_DELTA: u8 = 6;

impl Fixture {
    fn reads(&self, revision: &str) -> bool {
        self.answer_without_git(&self.log("", Some(revision), 1, None)).is_some()
    }

    /// Stores a loose object under an id of its own, and a branch that leads there.
    fn write_loose(&self, branch: &str, id: &str, content: &mut dyn Read) {
        let folder = self.at(".git/objects").join(&id[..2]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(&id[2..]), deflated(content)).unwrap();
        fs::write(self.at(".git/refs/heads").join(branch), format!("{id}\n")).unwrap();
    }

    /// Stores a pack with a commit and as many more, each as the difference from the one before, whose message is shorter by one
    /// letter. Returns the ids with the lengths of their chains.
    fn write_chain(&self, commit: &str) -> Vec<(usize, String)> {
        let mut pack = b"PACK\0\0\0\x02".to_vec();
        pack.extend(u32::try_from(COMMITS + 1).unwrap().to_be_bytes());
        let mut base = pack.len();
        pack.extend(entry_head(COMMIT, commit.len()));
        pack.extend(deflated(&mut commit.as_bytes()));
        for length in commit.len()..commit.len() + COMMITS {
            // Both lengths, a copy of all, and one letter (gitformat-pack(5)).
            let [low, high, ..] = length.to_le_bytes();
            let copy = [0x80 | 0x10 | 0x20, low, high];
            let delta = [&varint(length)[..], &varint(length + 1), &copy, &[1, b'x']].concat();
            let at = pack.len();
            pack.extend(entry_head(OFFSET_DELTA, delta.len()));
            pack.extend(offset(at - base));
            pack.extend(deflated(&mut &delta[..]));
            base = at;
        }
        pack.extend(Sha1::digest(&pack));
        let path = self.at(".git/objects/pack/pack-chain.pack");
        fs::write(&path, pack).unwrap();
        self.git(&["index-pack", path.to_str().unwrap()]);
        let listed = self.git(&["verify-pack", "-v", path.to_str().unwrap()]);
        let fields = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let deltas = fields.filter(|fields| fields.len() == 7 && fields[1] == "commit");
        deltas.map(|fields| (fields[5].parse().unwrap(), fields[0].to_owned())).collect()
    }
}

fn deflated(content: &mut dyn Read) -> Vec<u8> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    io::copy(content, &mut packed).unwrap();
    packed.finish().unwrap()
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    peak.unwrap().parse::<u64>().unwrap() >> 10
}

/// The kind of an entry and the length of its content.
fn entry_head(kind: u8, length: usize) -> Vec<u8> {
    let first = 0x80 | kind << 4 | low_bits(length, 15);
    [&[first][..], &varint(length >> 4)].concat()
}

/// A number in groups of 7 bits, the lowest first.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(0x80 | low_bits(number, 127));
        number >>= 7;
    }
    bytes.push(low_bits(number, 127));
    bytes
}

/// The distance to the base, which is less than 16,512, in two bytes or one.
fn offset(distance: usize) -> Vec<u8> {
    if distance < 128 {
        return vec![low_bits(distance, 127)];
    }
    let distance = distance - 128;
    vec![0x80 | low_bits(distance >> 7, 127), low_bits(distance, 127)]
}

fn low_bits(number: usize, mask: u8) -> u8 {
    number.to_le_bytes()[0] & mask
}

#[test]
fn chains_of_deltas_without_end_are_left_to_git() {
    let fixture = Fixture::new();
    fixture.commit("First");
    let deltas = fixture.write_chain(&fixture.git(&["cat-file", "commit", "HEAD"]));
    let (longest, of_longest) = deltas.iter().max().unwrap();
    assert!(*longest > 256, "{longest}");
    assert!(!fixture.reads(of_longest));
    let (_, shorter) = deltas.iter().find(|(length, _)| *length == 50).unwrap();
    assert!(fixture.reads(shorter), "the control");
}

#[test]
fn repositories_of_many_packs_are_left_to_git() {
    let fixture = Fixture::new();
    for number in 1..=33 {
        fixture.commit(&format!("Change {number}"));
        fixture.git(&["repack", "-dq"]);
        assert_eq!(fixture.reads("main"), number <= 32, "{number} packs");
    }
}

#[test]
fn large_objects_and_those_that_are_larger_than_they_say_are_left_to_git() {
    let fixture = Fixture::new();
    fixture.commit("First");
    let commit = fixture.git(&["cat-file", "commit", "HEAD"]);
    // The commit with this many letters more in its message, and a header that says how many bytes that are.
    let write = |branch: &str, id: &str, letters: u64, said: u64| {
        let head = format!("commit {}\0{commit}", commit.len() as u64 + said);
        fixture.write_loose(
            branch,
            &id.repeat(20),
            &mut head.as_bytes().chain(io::repeat(b'x').take(letters)),
        );
    };
    write("small", "11", 1 << 20, 1 << 20);
    assert!(fixture.reads("small"), "the control");
    write("large", "22", 5 << 20, 5 << 20);
    assert!(!fixture.reads("large"));
    write("liar", "33", 256 << 20, 0);
    let before = peak_mib();
    assert!(!fixture.reads("liar"));
    assert!(peak_mib() < before + 64);
}
