//! Changes of egress policies together with the record.

use skep_api::{
    VmId,
    egress::EgressPolicy,
    templates::{Template, TemplateSource},
};
use skep_store::{VmAttributes, VmChange};
use skep_swarm::{BootFrom, BootSpec};

use crate::{fake_templates::template as template_of, fixture::Fixture};

fn listed() -> EgressPolicy {
    EgressPolicy::listing(&["api.example.com"]).unwrap()
}

/// A VM with the policy of [`listed`].
async fn boot(fixture: &Fixture) -> VmId {
    let attributes = VmAttributes { egress: listed(), ..VmAttributes::default() };
    let spec = BootSpec { attributes, ..fixture.boot_spec(1) };
    fixture.boot_with(spec).await.unwrap().vms.remove(0).id
}

/// Changes the name and the policy. Returns whether that succeeded, and what the record has then.
async fn change(fixture: &Fixture, vm: VmId, egress: EgressPolicy) -> (bool, Option<String>, EgressPolicy) {
    let name = Some(Some("web".parse().unwrap()));
    let change = VmChange { name, egress: Some(egress), ..VmChange::default() };
    let changed = fixture.swarm.change(&fixture.account, vm, change, "x").await;
    let record = fixture.records().await.remove(0);
    (changed.is_ok(), record.name.map(|name| name.to_string()), record.egress)
}

#[tokio::test]
async fn a_change_that_cannot_be_recorded_changes_no_policy() {
    let fixture = Fixture::new().await;
    let vm = boot(&fixture).await;
    fixture.store.set_failing(true);
    // A wider policy, or one that allows others, is never applied.
    let other = EgressPolicy::listing(&["other.example.com"]).unwrap();
    for policy in [EgressPolicy::All, other] {
        assert_eq!(change(&fixture, vm, policy).await, (false, None, listed()));
        assert_eq!(fixture.keeper(|keeper| keeper.policies.clone()), [listed()]);
    }
    // A narrower one is taken back.
    assert_eq!(change(&fixture, vm, EgressPolicy::None).await, (false, None, listed()));
    assert_eq!(fixture.keeper(|keeper| keeper.policies.clone()), [listed(), EgressPolicy::None, listed()]);
    // The control.
    fixture.store.set_failing(false);
    let changed = change(&fixture, vm, EgressPolicy::All).await;
    assert_eq!(changed, (true, Some("web".to_owned()), EgressPolicy::All));
    assert_eq!(fixture.keeper(|keeper| keeper.policies.last().cloned()), Some(EgressPolicy::All));
    assert_eq!(fixture.keeper(|keeper| keeper.accounts.clone()), [Some(fixture.account)].into());
}

/// Boots a VM from a template with this policy. Returns the policy of its record.
async fn booted_from(fixture: &Fixture, template: Option<EgressPolicy>, keeps_egress: bool) -> EgressPolicy {
    let stored = Template { egress: template, ..template_of(fixture.account, "stored", 128) };
    let stored = Template { source: TemplateSource::Vm, ..stored };
    *fixture.store.templates.lock().unwrap() = vec![stored];
    let source = BootFrom::Template { reference: "stored".to_owned(), memory: true };
    let attributes = VmAttributes { egress: EgressPolicy::All, ..VmAttributes::default() };
    let spec = BootSpec { source, attributes, keeps_egress, ..fixture.boot_spec(1) };
    fixture.boot_with(spec).await.unwrap().vms.remove(0).egress
}

#[tokio::test]
async fn a_copy_has_the_policy_of_its_vm_unless_its_boot_gives_one() {
    let fixture = Fixture::new().await;
    assert_eq!(booted_from(&fixture, Some(listed()), true).await, listed());
    assert_eq!(booted_from(&fixture, Some(EgressPolicy::None), true).await, EgressPolicy::None);
    assert_eq!(fixture.keeper(|keeper| keeper.policies.clone()), [listed()]);
    assert_eq!(booted_from(&fixture, Some(listed()), false).await, EgressPolicy::All);
    // A snapshot of an earlier version has none.
    assert_eq!(booted_from(&fixture, None, true).await, EgressPolicy::All);
}

#[tokio::test]
async fn an_adopted_vm_has_the_policy_of_the_store() {
    let fixture = Fixture::new().await;
    let vm = boot(&fixture).await;
    let other = EgressPolicy::listing(&["other.example.com"]).unwrap();
    fixture.store.set_egress(vm, other.clone());
    let fixture = fixture.restart().await;
    assert_eq!(fixture.keeper(|keeper| keeper.policies.clone()), [listed(), other]);
    // A policy that is not applied loses no VM.
    fixture.keeper(|keeper| keeper.refuses_policies = true);
    let fixture = fixture.restart().await;
    assert_eq!(fixture.records().await.remove(0).id, vm);
}

#[tokio::test]
async fn a_policy_that_cannot_be_applied_is_not_on_record() {
    let fixture = Fixture::new().await;
    let vm = boot(&fixture).await;
    fixture.keeper(|keeper| keeper.refuses_policies = true);
    for policy in [EgressPolicy::All, EgressPolicy::None] {
        assert_eq!(change(&fixture, vm, policy).await, (false, None, listed()));
    }
    let stored = fixture.store.attributes(vm);
    assert_eq!((stored.name, stored.egress), (None, listed()));
    // The control.
    fixture.keeper(|keeper| keeper.refuses_policies = false);
    for policy in [EgressPolicy::All, EgressPolicy::None] {
        let changed = change(&fixture, vm, policy.clone()).await;
        assert_eq!(changed, (true, Some("web".to_owned()), policy));
    }
}
