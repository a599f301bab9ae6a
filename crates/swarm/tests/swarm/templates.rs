//! Boots from templates besides `base`, and their pool.

use std::collections::BTreeMap;

use skep_api::{
    AccountId, ErrorCode, TemplateId,
    keys::Limits,
    swarm::PoolState,
    templates::{Template, TemplateState},
};
use skep_swarm::{BootFrom, BootSpec};

use crate::{fake_templates::template, fixture::Fixture};

impl Fixture {
    fn of(&self, reference: impl ToString) -> BootSpec {
        BootSpec {
            source: BootFrom::Template { reference: reference.to_string(), memory: true },
            ..self.boot_spec(1)
        }
    }

    fn add(&self, template: Template) -> Template {
        self.store.templates.lock().unwrap().push(template.clone());
        template
    }

    async fn pool_of(&self, account: AccountId) -> BTreeMap<String, PoolState> {
        self.swarm.status(&account).await.unwrap().pool
    }
}

#[tokio::test]
async fn a_boot_counts_the_memory_of_its_template() {
    let fixture = Fixture::new().await;
    let big = fixture.add(template(fixture.account, "big", 512));
    let by_name = fixture.boot_with(fixture.of("big")).await.unwrap().vms.remove(0);
    assert_eq!(by_name.template, "big");
    assert_eq!(fixture.memory_used().await, 512 + 48);
    // The record has the name, however the template was given.
    let by_id = fixture.boot_with(fixture.of(big.id)).await.unwrap().vms.remove(0);
    assert_eq!((by_id.template.as_str(), fixture.memory_used().await), ("big", 2 * (512 + 48)));
    for reference in ["base".to_owned(), TemplateId::BASE.to_string()] {
        let base = fixture.boot_with(fixture.of(reference)).await.unwrap().vms.remove(0);
        assert_eq!(base.template, "base");
    }
    assert_eq!(fixture.memory_used().await, 2 * (512 + 48) + 2 * (128 + 48));
    let launched = fixture.keeper(|keeper| keeper.templates_launched.clone());
    assert_eq!(launched, [big.id, big.id, TemplateId::BASE, TemplateId::BASE]);
    let limits = Limits { max_memory_mb: Some(1400), ..Limits::NONE };
    let refused = fixture.swarm.boot(&fixture.account, &limits, fixture.of("big")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    assert!(refused.to_string().contains("512 MiB were asked for, and 120"), "{refused}");
    fixture
        .swarm
        .boot(&fixture.account, &Limits { max_memory_mb: Some(1408), ..limits }, fixture.boot_spec(1))
        .await
        .unwrap();
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn a_template_that_is_not_ready_or_not_seen_is_not_booted() {
    let fixture = Fixture::new().await;
    let reason = || Some("another processor".to_owned());
    for (state, code, named) in [
        (TemplateState::Building, ErrorCode::TemplateNotReady, "being built"),
        (TemplateState::Failed, ErrorCode::TemplateNotReady, "(another processor)"),
        (TemplateState::Outdated, ErrorCode::TemplateNotReady, "(another processor)"),
        (TemplateState::Damaged, ErrorCode::TemplateDamaged, "(another processor)"),
    ] {
        let of_state = template(fixture.account, state.as_str(), 512);
        fixture.add(Template { state, error: reason(), ..of_state });
        let refused = fixture.boot_with(fixture.of(state)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{state}");
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let theirs = fixture.add(template(AccountId::generate(), "theirs", 512));
    for reference in ["theirs".to_owned(), theirs.id.to_string(), "nothing".to_owned()] {
        let refused = fixture.boot_with(fixture.of(&reference)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::UnknownTemplate, "{reference}");
    }
    assert_eq!(fixture.keeper(|keeper| keeper.launched), 0);
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn the_pool_of_a_template_is_seen_by_its_account_alone_and_ends_with_it() {
    let fixture = Fixture::with_pool(4).await;
    let big = fixture.add(template(fixture.account, "big", 512));
    fixture.boot_with(fixture.of("big")).await.unwrap();
    // The guests of this fixture cannot be parked, but each pool has its target.
    let own: Vec<String> = fixture.pool_of(fixture.account).await.into_keys().collect();
    assert_eq!(own, ["base", "big"]);
    let seen_by_other: Vec<String> = fixture.pool_of(AccountId::generate()).await.into_keys().collect();
    assert_eq!(seen_by_other, ["base"]);
    assert!(fixture.swarm.metrics().await.pool.contains_key("big"));
    fixture.swarm.cleanup(&fixture.account, "end").await.unwrap();
    fixture.swarm.remove_template(big.id).await.unwrap();
    assert_eq!(fixture.keeper(|keeper| keeper.removed.clone()), [big.id]);
    assert!(!fixture.pool_of(fixture.account).await.contains_key("big"));
}
