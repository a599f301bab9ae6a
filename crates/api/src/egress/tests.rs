use proptest::prelude::*;

use serde_json::json;

use super::*;

fn policy(value: Value) -> Result<EgressPolicy, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[test]
fn a_policy_is_read_and_written() {
    for value in [
        json!("none"),
        json!("all"),
        json!({"allow": ["api.example.com", "*.example.org", "203.0.113.0/24", "192.0.2.7"]}),
        json!({"allow": ["0.0.0.0/0"], "ports": [80, 443]}),
        json!({"allow": ["api.example.com"], "presets": ["github", "python"], "ports": [443]}),
        json!({"presets": ["gitlab"]}),
    ] {
        assert_eq!(Value::from(policy(value.clone()).unwrap()), value);
    }
    let sorted = policy(json!({"allow": ["API.Example.com."], "ports": [443, 80, 443]})).unwrap();
    assert_eq!(Value::from(sorted), json!({"allow": ["api.example.com"], "ports": [80, 443]}));
}

#[test]
fn a_wrong_policy_is_refused_by_name() {
    let many = vec!["a.example"; MAX_ENTRIES + 1];
    let long: Vec<String> = (0..MAX_ENTRIES)
        .map(|number| {
            format!("{}.{}.{}.{}.n{number}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(55))
        })
        .collect();
    for (value, part) in [
        (json!("some"), "not \"some\""),
        (json!(7), "not 7"),
        (json!({}), "not {}"),
        (json!({"allow": ["x.example"], "deny": []}), "deny"),
        (json!({"allow": []}), "`allow` has 0 entries; give 1 to 64, or \"none\""),
        (json!({"allow": many}), "65 entries"),
        (json!({"allow": ["*"]}), "\"*\" cannot be allowed"),
        (json!({"allow": ["a.*.example"]}), "cannot be allowed"),
        (json!({"allow": ["10.0.0.256"]}), "10.0.0.256"),
        (json!({"allow": ["10.0.0.0/33"]}), "10.0.0.0/33"),
        (json!({"allow": ["10.0.0.1/8"]}), "give 10.0.0.0/8"),
        (json!({"allow": ["2001:db8::/32"]}), "IPv4 only"),
        (json!({"allow": ["https://x.example"]}), "cannot be allowed"),
        (json!({"allow": [7]}), "7"),
        (json!({"allow": "x.example"}), "not {\"allow\":\"x.example\"}"),
        (json!({"presets": []}), "`presets` has 0 entries"),
        (json!({"presets": ["cobol"]}), "\"cobol\" is not a preset; the presets are anthropic, debian,"),
        (json!({"allow": ["x.example"], "ports": []}), "`ports` has 0 entries"),
        (json!({"allow": ["x.example"], "ports": [0]}), "has 0; a port"),
        (json!({"allow": ["x.example"], "ports": [65536]}), "65536"),
        (json!({"allow": long, "ports": (65_000..65_064).collect::<Vec<u32>>()}), "bytes; at most 16384"),
    ] {
        let error = policy(value).err().unwrap_or_default();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_preset_permits_its_hosts_and_no_others() {
    let preset = EgressPreset::by_name("gitlab").unwrap();
    let with = EgressPolicy::None.with_presets(&[preset, preset]);
    assert_eq!(Value::from(with.clone()), json!({"presets": ["gitlab"]}));
    assert!(with.permits_name("gitlab.com", 443) && with.permits_name("GitLab.com.", 22));
    assert!(with.lists_name("gitlab.com"));
    for other in ["gitlab.org", "a.gitlab.com", "com", "github.com"] {
        assert!(!with.permits_lookup(other), "{other}");
    }
    let both = EgressPolicy::listing(&["203.0.113.0/24"]).unwrap().with_presets(&[preset]);
    assert!(both.permits_lookup("gitlab.com") && both.permits_address(Ipv4Addr::new(203, 0, 113, 7), 80));
    assert_eq!(EgressPolicy::None.with_presets(&[]), EgressPolicy::None);
    assert_eq!(EgressPolicy::All.with_presets(&[preset]), EgressPolicy::All);
}

#[test]
fn a_policy_permits_what_it_names() {
    let listed =
        policy(json!({"allow": ["api.example.com", "*.example.org", "203.0.113.0/24"], "ports": [443]}));
    let listed = listed.unwrap();
    for name in ["api.example.com", "API.example.com.", "a.example.org", "a.b.example.org"] {
        assert!(listed.permits_name(name, 443) && !listed.permits_name(name, 80), "{name}");
    }
    for name in ["example.com", "example.org", ".example.org", "xexample.org", "api.example.com.evil.example"]
    {
        assert!(!listed.permits_lookup(name), "{name}");
    }
    let inside = Ipv4Addr::new(203, 0, 113, 255);
    assert!(listed.permits_address(inside, 443) && !listed.permits_address(inside, 80));
    assert!(!listed.permits_address(Ipv4Addr::new(203, 0, 114, 0), 443));
    assert!(EgressPolicy::All.permits_name("x", 1) && EgressPolicy::All.permits_address(inside, 1));
    assert!(!EgressPolicy::None.permits_name("x", 1) && !EgressPolicy::None.permits_address(inside, 1));
}

proptest! {
    #[test]
    fn every_accepted_entry_is_read_back(text in "[a-zA-Z0-9.*/_-]{1,30}") {
        if let Ok(read) = policy(json!({"allow": [text]})) {
            let again = policy(Value::from(read.clone())).unwrap();
            prop_assert_eq!(read, again);
        }
    }

    #[test]
    fn a_network_contains_exactly_its_addresses(bits: u32, other: u32, length in 0..=32_u8) {
        let network = Ipv4Addr::from_bits(bits & mask(length));
        let policy = policy(json!({"allow": [format!("{network}/{length}")]})).unwrap();
        let contained = other & mask(length) == network.to_bits();
        prop_assert_eq!(policy.permits_address(Ipv4Addr::from_bits(other), 1), contained);
    }
}

#[test]
fn a_policy_is_within_one_that_allows_more() {
    let policy = |value: serde_json::Value| EgressPolicy::try_from(value).unwrap();
    let list =
        policy(json!({"allow": ["a.example", "192.0.2.0/24"], "presets": ["python"], "ports": [80, 443]}));
    let narrower = [
        json!("none"),
        json!({"allow": ["a.example"], "ports": [443]}),
        json!({"presets": ["python"], "ports": [80, 443]}),
    ];
    for narrower in narrower.map(policy) {
        assert!(narrower.is_within(&list) && !list.is_within(&narrower), "{narrower:?}");
    }
    let others = [
        json!({"allow": ["b.example"], "ports": [443]}),
        json!({"allow": ["a.example"]}),
        json!({"allow": ["a.example"], "presets": ["node"], "ports": [80]}),
    ];
    for other in others.map(policy) {
        assert!(!other.is_within(&list) && other.is_within(&EgressPolicy::All), "{other:?}");
        assert!(!other.is_within(&EgressPolicy::None));
    }
    for policy in [EgressPolicy::None, EgressPolicy::All, list] {
        assert!(policy.is_within(&policy));
    }
}

#[test]
fn the_ports_of_a_list_can_be_replaced() {
    let list = EgressPolicy::try_from(json!({"allow": ["a.example"], "ports": [443]})).unwrap();
    assert_eq!(list.ports(), Some(&[443][..]));
    let every = list.clone().with_ports(None).unwrap();
    assert_eq!((every.ports(), every.permits_name("a.example", 22)), (None, true));
    assert_eq!(every.with_ports(Some(&[443])).unwrap(), list);
    assert!(list.with_ports(Some(&[0])).is_err());
    assert_eq!(EgressPolicy::All.with_ports(Some(&[443])).unwrap(), EgressPolicy::All);
}
