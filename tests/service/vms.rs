//! The list of VMs.

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_api::{
    AccountId, Scope, TemplateId, VmId, VmName,
    swarm::{EndReason, PausedBy},
};
use skep_store::{PauseChange, RecordEnd, RecordPause, VmAttributes, VmBooted};

use crate::harness::{self, Skep, refused};

/// A time far in the future: records of VMs that ended a month ago are deleted.
fn moment(second: i64) -> Timestamp {
    Timestamp::from_second(4_000_000_000 + second).unwrap()
}

fn booted(account: AccountId, pid: u32) -> VmBooted {
    VmBooted { started_at: moment(0), ..harness::booted(account, pid) }
}

async fn boot(skep: &Skep, account: AccountId, pid: u32) -> VmId {
    record(skep, booted(account, pid)).await
}

async fn record(skep: &Skep, vm: VmBooted) -> VmId {
    let id = vm.id;
    skep.record_boots(vec![vm], moment(0), None).await;
    id
}

async fn end(skep: &Skep, vm: VmId, reason: EndReason, second: i64) {
    let command = RecordEnd { vm, reason, at: moment(second), request_id: None, message: None };
    skep.store.record_end(command).await.unwrap();
}

async fn list(skep: &Skep, query: &str) -> Value {
    let answer = skep.get(&format!("/api/vms{query}")).await;
    assert_eq!(answer.status(), 200, "{query}");
    answer.json().await.unwrap()
}

fn pids(page: &Value) -> Vec<u64> {
    page["vms"].as_array().unwrap().iter().map(|vm| vm["pid"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn vms_that_ended_are_listed_with_reasons_the_last_to_end_first() {
    let skep = Skep::start().await;
    let (own, other) = (skep.account.id, skep.other_account("other").await);
    let mut vms = Vec::new();
    for pid in 1..=4 {
        vms.push(boot(&skep, own, pid).await);
    }
    let foreign = boot(&skep, other, 5).await;
    end(&skep, vms[2], EndReason::OutOfMemory, 10).await;
    end(&skep, vms[0], EndReason::Expired, 20).await;
    end(&skep, foreign, EndReason::Deleted, 30).await;

    let ended = list(&skep, "?state=ended").await;
    assert_eq!(pids(&ended), [1, 3]);
    let oldest = &ended["vms"][1];
    assert_eq!(
        (&oldest["state"], &oldest["reason"], &oldest["ended_at"], &oldest["uptime"]),
        (&json!("ended"), &json!("out_of_memory"), &json!(format!("{:.3}", moment(10))), &json!(10.0))
    );
    let living = list(&skep, "").await;
    assert_eq!(pids(&living), [4, 2]);
    assert_eq!(living["vms"][0]["state"], "running");
    assert!(living["vms"][0].get("reason").is_none() && living["vms"][0].get("ended_at").is_none());
    assert_eq!(pids(&list(&skep, "?state=running").await), [4, 2]);
    assert!(pids(&list(&skep, "?state=paused").await).is_empty());
}

#[tokio::test]
async fn paused_vms_are_listed_by_the_place_of_their_memory() {
    let skep = Skep::start().await;
    let own = skep.account.id;
    let by = PausedBy::Request;
    let to_memory = PauseChange::PausedToMemory { by };
    let to_disk = || PauseChange::PausedToDisk { by, snapshot: TemplateId::generate() };
    for (pid, change) in [(1, to_memory), (2, to_disk()), (3, to_disk())] {
        let vm = boot(&skep, own, pid).await;
        let pause = RecordPause { vm, change, at: moment(5), request_id: None };
        skep.store.record_pause(pause).await.unwrap();
    }
    boot(&skep, own, 4).await;
    let found = async |query: &str| list(&skep, query).await["vms"].as_array().unwrap().len();
    for (query, count) in [("", 4), ("?state=paused", 3), ("?paused_to=memory", 1), ("?paused_to=disk", 2)] {
        assert_eq!(found(query).await, count, "{query}");
    }
    assert_eq!(found("?state=paused&paused_to=disk&name=web").await, 0);
    let first = list(&skep, "?paused_to=disk&limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    assert_eq!(found(&format!("?paused_to=disk&limit=1&cursor={cursor}")).await, 1);
    let refusal = refused(skep.get(&format!("/api/vms?paused_to=memory&cursor={cursor}")).await).await;
    assert!(refusal.message.contains("another filter"), "{}", refusal.message);
}

#[tokio::test]
async fn pages_hold_each_vm_once() {
    let skep = Skep::start().await;
    for pid in 1..=9 {
        let vm = boot(&skep, skep.account.id, pid).await;
        if pid < 6 {
            // Some VMs end at the same time.
            end(&skep, vm, EndReason::Deleted, i64::from(pid / 3)).await;
        }
    }
    for (state, most) in [("ended", 5), ("running", 4)] {
        let whole = pids(&list(&skep, &format!("?state={state}")).await);
        assert_eq!(whole.len(), most);
        for limit in 1..=most {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = list(&skep, &format!("?state={state}&limit={limit}{cursor}")).await;
                assert!(pids(&page).len() <= limit);
                seen.extend(pids(&page));
                let Some(next) = page["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            assert_eq!(seen, whole, "{state} in pages of {limit}");
        }
    }
}

#[tokio::test]
async fn a_list_is_filtered_by_name_template_and_metadata() {
    let skep = Skep::start().await;
    let (own, other) = (skep.account.id, skep.other_account("other").await);
    let metadata = |job: Value| serde_json::Map::from_iter([("job id".to_owned(), job)]);
    let with = |name: &Option<VmName>, metadata, vm: VmBooted| VmBooted {
        attributes: VmAttributes { name: name.clone(), metadata, ..VmAttributes::default() },
        ..vm
    };
    for (pid, job) in [(1, json!("7")), (2, json!(7)), (3, json!("8"))] {
        record(&skep, with(&None, metadata(job), booted(own, pid))).await;
    }
    let web = Some("web".parse().unwrap());
    let mine = VmBooted { template: "mine".to_owned(), ..booted(own, 4) };
    let named = record(&skep, with(&web, Default::default(), mine)).await;
    record(&skep, with(&web, metadata(json!("7")), booted(other, 5))).await;
    let found = async |query: &str| {
        let mut pids = pids(&list(&skep, query).await);
        pids.sort_unstable();
        pids
    };
    assert_eq!(found("?name=web").await, [4]);
    assert_eq!(list(&skep, "?name=web").await["vms"][0]["name"], "web");
    assert_eq!(found("?template=base").await, [1, 2, 3]);
    assert_eq!(found("?metadata.job+id=7").await, [1, 2]);
    assert_eq!(found("?metadata.job%20id=8&template=base").await, [3]);
    assert!(found("?metadata.job=7").await.is_empty() && found("?name=web&template=base").await.is_empty());
    end(&skep, named, EndReason::Deleted, 10).await;
    assert!(found("?name=web").await.is_empty());
    assert_eq!(found("?name=web&state=ended").await, [4]);

    let first = list(&skep, "?metadata.job+id=7&limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = list(&skep, &format!("?metadata.job+id=7&limit=1&cursor={cursor}")).await;
    assert_ne!(pids(&first), pids(&second));
    assert!(second["next_cursor"].is_null());
    for filter in ["", "metadata.job+id=8&", "metadata.job+id=7&name=web&", "metadata.job+id=7&state=ended&"]
    {
        let refusal = refused(skep.get(&format!("/api/vms?{filter}cursor={cursor}")).await).await;
        assert_eq!((refusal.status, refusal.code.as_str()), (400, "invalid_value"), "{filter}");
        assert!(refusal.message.contains("another filter"), "{}", refusal.message);
    }
}

#[tokio::test]
async fn invalid_list_parameters_are_refused_with_their_value() {
    let skep = Skep::start().await;
    let many = format!("?{}", (0..17).map(|n| format!("metadata.{n}=1")).collect::<Vec<_>>().join("&"));
    for (query, named) in [
        ("?state=dead", "\"dead\""),
        ("?paused_to=tape", "\"tape\""),
        ("?paused_to=disk&state=running", "leave `state` out"),
        ("?paused_to=disk&state=ended", "leave `state` out"),
        ("?limit=0", "`limit` is 0"),
        ("?cursor=vm_1", "`cursor`"),
        ("?metadata.=1", "`metadata.`"),
        ("?metadata.a=1&metadata.a=2", "`metadata.a` is given twice"),
        (&many, "17 `metadata.KEY` are given"),
    ] {
        let refusal = refused(skep.get(&format!("/api/vms{query}")).await).await;
        assert_eq!((refusal.status, refusal.code.as_str()), (400, "invalid_value"), "{query}");
        assert!(refusal.message.contains(named), "{}", refusal.message);
    }
    let (key, _) = skep.key(&[Scope::FilesRead]).await;
    let answer = skep.bare(reqwest::Method::GET, "/api/vms").bearer_auth(key).send().await.unwrap();
    assert_eq!(refused(answer).await.code, "scope_missing");
}
