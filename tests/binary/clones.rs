//! What has to differ between VMs of one snapshot, and the check that finds what they share.
//!
//! `soak::without_reseed` is the control: it applies the check to VMs without the reseed.

mod thorough;

use std::collections::BTreeMap;

/// Has to differ, one line each.
pub(crate) const UNIQUE: &str = r"
echo urandom $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo uuid $(cat /proc/sys/kernel/random/uuid)
echo boot_id $(cat /proc/sys/kernel/random/boot_id)
echo machine_id $(cat /etc/machine-id)
echo mac $(cat /sys/class/net/eth0/address)
echo ip $(ip -4 -o addr show eth0 | awk '{print $4}')
echo hostname $(hostname)
echo generation $(cat /run/skep/generation)
echo mktemp $(mktemp -u)
";

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
