//! Resolution of references to VMs.

use skep_api::{AccountId, ErrorCode, Failure, VmId, VmRef};
use skep_store::{VmAttributes, VmChange};
use skep_swarm::BootSpec;

use crate::fixture::Fixture;

impl Fixture {
    fn named(&self, name: &str) -> BootSpec {
        let attributes = VmAttributes { name: Some(name.parse().unwrap()), ..VmAttributes::default() };
        BootSpec { attributes, ..self.boot_spec(1) }
    }

    async fn find(&self, text: &str) -> Result<VmId, Failure> {
        let found = self.swarm.vm(&self.account, VmRef::parse(text).unwrap()).await;
        found.map(|vm| vm.id).map_err(Failure::from)
    }

    async fn rename(&self, vm: VmId, name: Option<&str>) {
        let change = VmChange { name: Some(name.map(|name| name.parse().unwrap())), ..VmChange::default() };
        let changed = self.swarm.change(&self.account, vm, change, "rename").await.unwrap();
        assert_eq!(changed.name.map(|name| name.to_string()).as_deref(), name);
    }
}

#[tokio::test]
async fn a_vm_is_found_by_every_kind_of_reference_in_its_account() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot_with(fixture.named("web")).await.unwrap().vms.remove(0);
    let id = vm.id.to_string();
    let references = [
        vm.pid.unwrap().to_string(),
        id.clone(),
        id.replace('_', "-"),
        vm.ip.clone(),
        "web".to_owned(),
        id[..12].to_owned(),
    ];
    for reference in &references {
        assert_eq!(fixture.find(reference).await.unwrap(), vm.id, "{reference}");
        let other =
            fixture.swarm.vm(&AccountId::generate(), VmRef::parse(reference).unwrap()).await.unwrap_err();
        assert_eq!(other.code(), ErrorCode::UnknownVm, "{reference}");
    }
    for wrong in ["webb", "we", "1", "10.9.9.9", "vm_7"] {
        assert_eq!(fixture.find(wrong).await.unwrap_err().code, ErrorCode::UnknownVm, "{wrong}");
    }
    fixture.swarm.end(&fixture.account, vm.id, "a").await.unwrap();
    for reference in references {
        assert_eq!(fixture.find(&reference).await.unwrap_err().code, ErrorCode::UnknownVm, "{reference}");
    }
}

#[tokio::test]
async fn an_ambiguous_prefix_names_some_of_the_matching_vms() {
    let fixture = Fixture::new().await;
    let mut vms = fixture.boot(4).await.unwrap().vms;
    vms.sort_by_key(|vm| vm.id);
    let refused = fixture.find("vm_0").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidValue);
    for vm in &vms[..3] {
        assert!(refused.message.contains(&vm.id.to_string()), "{refused}");
    }
    assert!(refused.message.contains("and 1 more") && refused.message.contains("`vm_0`"), "{refused}");
    // Ids of the same millisecond may differ in their last character only, so the prefix ends at the first difference.
    let (nearest, whole) = (vms[2].id.to_string(), vms[3].id.to_string());
    let shared = nearest.bytes().zip(whole.bytes()).take_while(|(one, other)| one == other).count();
    assert_eq!(fixture.find(&whole[..=shared]).await.unwrap(), vms[3].id);
    fixture.swarm.cleanup(&fixture.account, "c").await.unwrap();
}

#[tokio::test]
async fn a_name_that_is_taken_costs_no_boot_and_survives_a_restart() {
    let fixture = Fixture::new().await;
    let vm = fixture.boot_with(fixture.named("web")).await.unwrap().vms.remove(0);
    let launched = fixture.keeper(|keeper| keeper.launched);
    let taken = fixture.boot_with(fixture.named("web")).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::NameTaken);
    assert!(taken.to_string().contains(&vm.id.to_string()), "{taken}");
    assert_eq!(fixture.keeper(|keeper| keeper.launched), launched);

    fixture.rename(vm.id, Some("api")).await;
    assert_eq!(fixture.find("web").await.unwrap_err().code, ErrorCode::UnknownVm);
    let fixture = fixture.restart().await;
    assert_eq!(fixture.find("api").await.unwrap(), vm.id);
    fixture.boot_with(fixture.named("web")).await.unwrap();
    fixture.rename(vm.id, None).await;
    assert_eq!(fixture.find("api").await.unwrap_err().code, ErrorCode::UnknownVm);
    fixture.swarm.cleanup(&fixture.account, "c").await.unwrap();
}
