//! What has to differ between VMs of one snapshot, and the check that finds what they share.
//!
//! `soak::without_reseed` is the control: it applies the check to VMs without the reseed.

mod thorough;

use std::collections::BTreeMap;

/// Has to differ, one line each. It starts few programs, because each start takes long in an emulated guest.
pub(crate) const UNIQUE: &str = r#"
line() { read -r line < $1; echo $line; }
echo urandom $(set -- $(od -An -N32 -tx1 -v /dev/urandom); IFS=; echo "$*")
echo uuid $(line /proc/sys/kernel/random/uuid)
echo boot_id $(line /proc/sys/kernel/random/boot_id)
echo machine_id $(line /etc/machine-id)
echo mac $(line /sys/class/net/eth0/address)
echo ip $(set -- $(ip -4 -o addr show eth0); echo $4)
echo hostname $(line /proc/sys/kernel/hostname)
echo generation $(line /run/skep/generation)
echo mktemp $(mktemp -u)
"#;

/// By name, the values that more than one VM gave.
pub(crate) fn shared(answers: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut seen: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for line in answers.iter().flat_map(|answer| answer.lines()) {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        *seen.entry(name.to_owned()).or_default().entry(value.to_owned()).or_default() += 1;
    }
    let twice = |values: BTreeMap<String, usize>| -> Vec<String> {
        values.into_iter().filter(|(_, count)| *count > 1).map(|(value, _)| value).collect()
    };
    seen.into_iter()
        .map(|(name, values)| (name, twice(values)))
        .filter(|(_, values)| !values.is_empty())
        .collect()
}

#[test]
fn what_two_clones_share_is_found() {
    let answers = ["uuid 1\nip 7".to_owned(), "uuid 2\nip 8".to_owned(), "uuid 1\nip 9".to_owned()];
    assert_eq!(shared(&answers), BTreeMap::from([("uuid".to_owned(), vec!["1".to_owned()])]));
    assert!(shared(&answers[..2]).is_empty());
}
