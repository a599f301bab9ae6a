//! Conformance tests for implementations of [`Store`], which run them through [`store_suite!`](crate::store_suite).

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "these are tests: a panic is how they fail"
)]
#![allow(missing_docs, reason = "a test's name is its promise")]

pub mod accounts;
pub mod audit;
pub mod concurrency;
pub mod events;
pub mod git;
pub mod keys;
pub mod large_tickets;
pub mod rotation;
pub mod run_logs;
pub mod sessions;
pub mod templates;
pub mod ticket_lists;
pub mod ticket_model;
pub mod ticket_races;
pub mod tickets;
pub mod vm_pauses;
pub mod vm_tickets;
pub mod vms;
pub mod waitlist;
pub mod webhooks;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use skep_accounts::{KeyHash, KeySecret};
use skep_api::{
    AccountId, Environment, KeyId, Role, Scope, TemplateId, VmId,
    accounts::GitRelay,
    egress::EgressPolicy,
    keys::Limits,
    swarm::{BootReceipt, BootSource, EndReason, OnIdle},
};

use crate::{
    Account, CreateAccount, DeleteAccount, EnsureAdminKey, EnsureDefaultAccount, Event, EventKind, NewKey,
    RecordBoots, RecordEnd, RevokeKey, Store, VmAttributes, VmBooted, VmToEnd,
};

/// Expands to one test per function of the suite. Takes an async function that returns a guard and an empty store
/// (`Arc<dyn Store>`).
#[macro_export]
macro_rules! store_suite {
    ($fresh:path) => {
        $crate::store_suite!($fresh:
            accounts::the_default_account_is_made_once,
            accounts::roots_are_replaced,
            accounts::roots_of_two_accounts_lie_apart,
            accounts::unknown_accounts_are_refused,
            accounts::an_account_is_kept_as_it_was_made,
            accounts::what_may_change_of_an_account_changes,
            accounts::accounts_are_listed_once_newest_first,
            accounts::an_account_that_is_deleted_ends_with_its_keys,
            accounts::an_account_with_vms_and_the_default_one_are_not_deleted,
            keys::a_key_is_kept_as_it_was_made,
            keys::a_name_belongs_to_one_valid_key,
            keys::a_second_revocation_answers_the_record,
            keys::keys_of_another_account_are_unknown,
            keys::a_key_is_bound_only_to_a_vm_that_lives,
            keys::a_vm_had_a_key_also_if_the_key_is_revoked,
            keys::pages_hold_every_key_once_newest_first,
            keys::uses_are_noted_without_events,
            keys::the_admin_key_is_made_once,
            keys::a_new_admin_key_takes_the_name,
            rotation::a_rotated_key_has_a_successor_like_it,
            rotation::only_a_key_that_has_its_name_is_rotated,
            rotation::all_keys_of_an_account_are_revoked_but_one,
            rotation::keys_with_further_scopes_are_neither_revoked_nor_listed,
            rotation::listeners_receive_every_revocation,
            sessions::a_session_leads_to_its_key_until_it_is_ended,
            sessions::a_session_shows_that_its_key_was_revoked,
            sessions::a_key_has_a_hundred_sessions_and_the_newest_stay,
            sessions::uses_of_a_session_are_noted_and_never_go_back,
            sessions::the_end_of_a_session_is_announced_once,
            sessions::a_link_is_taken_once_and_shows_its_key,
            sessions::callers_at_once_take_a_link_once,
            sessions::a_key_has_a_hundred_links_and_the_newest_stay,
            ticket_lists::titles_and_ids_are_searched_without_regard_to_case,
            ticket_lists::a_summary_has_what_the_record_has,
            ticket_lists::related_tickets_are_connected_in_both_directions,
            ticket_lists::a_large_graph_is_cut_to_the_nearest_tickets,
            ticket_lists::tickets_are_counted_by_what_they_wait_for,
            vms::boots_are_recorded_as_they_were,
            vms::boots_are_all_or_none,
            vms::what_may_change_of_a_vm_changes_while_it_lives,
            vms::a_name_belongs_to_one_living_vm_of_an_account,
            vms::lists_of_vms_are_filtered_by_name_template_and_metadata,
            vms::a_second_end_changes_nothing,
            vms::those_that_live_are_counted_by_account,
            vm_pauses::a_pause_is_recorded_until_the_vm_is_resumed,
            vm_pauses::a_vm_that_ended_is_not_paused_or_resumed,
            vm_pauses::paused_vms_are_listed_and_counted_apart,
            vm_pauses::a_vm_on_disk_has_no_process_and_gets_another_one,
            vm_pauses::an_unusable_snapshot_is_recorded_once_for_each_reason,
            vm_pauses::a_former_process_id_is_that_of_the_vm_that_got_it_last,
            templates::a_template_is_kept_as_it_was_made_and_built,
            templates::a_template_is_found_by_name_and_id_by_its_account_alone,
            templates::templates_are_listed_once_base_first,
            templates::a_name_belongs_to_one_template_of_an_account,
            templates::templates_and_builds_of_an_account_are_limited,
            templates::the_disk_space_of_an_account_is_that_of_its_own_templates,
            templates::a_template_that_is_used_is_not_deleted,
            templates::a_snapshot_is_recorded_with_its_vm,
            templates::a_vm_of_a_template_that_was_deleted_is_not_recorded,
            templates::a_state_is_recorded_once_with_its_event,
            templates::the_answer_of_a_named_creation_is_kept_with_it,
            templates::templates_end_with_their_account,
            vms::keys_end_with_their_vm,
            vms::a_start_ends_those_that_it_lost,
            vms::records_of_vms_that_ended_are_kept_as_long_as_events,
            vm_tickets::a_vm_that_is_booted_for_a_ticket_holds_it_with_a_key_of_its_own,
            vm_tickets::an_attempt_ends_with_the_command_of_its_boot,
            vm_tickets::a_command_completes_its_ticket_or_gives_it_back,
            vm_tickets::a_vm_whose_attempt_has_ended_is_not_recorded,
            vm_tickets::a_vm_is_to_end_with_its_attempt_unless_it_is_kept,
            vms::the_answer_of_a_named_boot_is_kept_with_it_for_a_day,
            run_logs::the_end_of_a_log_is_kept_and_read_from_anywhere,
            run_logs::a_log_belongs_to_an_attempt_and_outlives_vm_and_ticket,
            run_logs::an_account_fills_the_disk_with_no_logs_and_takes_none_of_anothers,
            git::a_host_has_one_credential_of_an_account,
            git::credentials_end_with_their_account,
            tickets::a_graph_is_kept_as_it_was_made,
            tickets::what_is_refused_leaves_nothing,
            tickets::listeners_receive_what_timers_and_waiting_claims_need,
            tickets::a_due_time_makes_a_ticket_ready_once,
            tickets::leases_that_begin_anew_are_written_and_nothing_else,
            tickets::a_ticket_becomes_ready_if_its_due_time_is_removed_before_the_timer,
            tickets::what_a_finished_ticket_once_waited_for_may_go,
            tickets::only_the_time_that_was_set_last_ends_an_attempt,
            tickets::tickets_end_with_their_vms,
            tickets::a_thousand_wait_for_one_and_are_ready_once,
            tickets::a_deleted_ticket_leaves_its_history,
            large_tickets::pages_of_large_tickets_end_by_what_they_cost,
            large_tickets::pages_of_a_long_history_end_by_what_they_cost,
            tickets::a_named_request_has_its_effect_once_for_a_day,
            ticket_model::whatever_agents_do_the_store_agrees_with_the_model,
            ticket_model::whatever_agents_do_at_once_the_invariants_hold,
            ticket_races::one_of_many_claims_wins,
            ticket_races::claims_at_once_get_different_tickets,
            ticket_races::a_completion_and_the_end_of_its_lease_never_both_end_an_attempt,
            ticket_races::changes_at_once_make_no_cycle,
            ticket_races::the_last_prerequisites_at_once_make_it_ready_once,
            waitlist::who_joins_is_listed_newest_first,
            waitlist::an_address_is_listed_once_with_its_first_request,
            waitlist::pages_of_the_waitlist_hold_everybody_once,
            waitlist::pages_of_long_waitlist_entries_end_by_their_bytes,
            waitlist::who_is_removed_is_forgotten_whole,
            audit::entries_are_kept_as_they_were,
            audit::an_entry_that_is_written_twice_stands_once,
            audit::an_account_sees_its_own_and_the_operator_what_was_refused_to_strangers,
            audit::entries_are_found_by_each_filter,
            audit::pages_of_the_audit_hold_every_entry_once,
            audit::pages_of_long_audit_entries_end_by_their_bytes,
            audit::what_is_too_old_goes,
            audit::what_is_too_much_goes_oldest_first,
            audit::a_flood_of_strangers_pushes_out_nothing_but_itself,
            audit::an_account_with_much_history_pushes_out_its_own_only,
            events::events_are_read_in_order_page_by_page,
            events::a_time_has_a_place_in_the_order_of_commits,
            events::events_hold_no_secret,
            events::a_page_holds_what_was_asked_for_and_says_where_it_ended,
            events::a_page_ends_by_what_it_costs,
            events::what_is_kept_no_longer_is_known_to_be_missing,
            events::a_record_contains_what_was_written_until_then,
            events::each_commit_wakes_its_listeners,
            webhooks::a_webhook_is_kept_as_it_was_made_and_changed,
            webhooks::webhooks_are_listed_newest_first_and_limited,
            webhooks::events_become_deliveries_of_those_who_want_them_once,
            webhooks::too_many_deliveries_wait_as_events_and_none_is_lost,
            webhooks::attempts_are_noted_and_followed,
            webhooks::pages_of_long_deliveries_end_by_their_bytes,
            webhooks::a_webhook_is_disabled_and_begins_anew,
            webhooks::deliveries_go_with_their_events_and_their_webhooks,
            webhooks::deliveries_go_with_events_that_are_too_many,
            concurrency::writers_at_once_are_all_durable,
            concurrency::one_of_many_gets_a_name,
            concurrency::a_refusal_harms_no_neighbour,
            concurrency::a_store_that_works_answers_the_ping,
        );
    };
    ($fresh:path: $($subject:ident::$promise:ident),+ $(,)?) => {
        $(
            #[tokio::test]
            async fn $promise() {
                let (_guard, store) = $fresh().await;
                $crate::suite::$subject::$promise(store).await;
            }
        )+
    };
}

/// A fixed time plus `step` milliseconds.
pub fn moment(step: i64) -> Timestamp {
    Timestamp::from_millisecond(1_780_000_000_123 + step).unwrap()
}

pub async fn default_account(store: &dyn Store) -> Account {
    let command = EnsureDefaultAccount { roots: vec!["/srv/work".to_owned()], at: moment(0) };
    store.ensure_default_account(command).await.unwrap()
}

/// Command to create an account without limits.
pub fn new_account(name: &str) -> CreateAccount {
    CreateAccount {
        name: name.to_owned(),
        roots: vec![format!("/srv/{name}")],
        allowed_ips: vec![],
        limits: Limits::NONE,
        egress: EgressPolicy::None,
        git_relay: GitRelay::default(),
        at: moment(1),
    }
}

pub async fn account_named(store: &dyn Store, name: &str) -> Account {
    store.create_account(new_account(name)).await.unwrap()
}

pub fn deletion(account: AccountId, step: i64) -> DeleteAccount {
    DeleteAccount { account, at: moment(step), request_id: Some(format!("delete-{step}")) }
}

pub fn hash(number: u8) -> KeyHash {
    secret(number).hash()
}

/// A key secret that ends in this byte.
pub fn secret(number: u8) -> KeySecret {
    let mut random = [0xa5; 32];
    random[31] = number;
    KeySecret::from_random(Environment::Prod, random)
}

/// Command to create an agent key with the secret [`secret`]`(number)`.
pub fn new_key(account: AccountId, name: &str, number: u8) -> NewKey {
    NewKey {
        account,
        name: name.to_owned(),
        environment: Environment::Prod,
        role: Some(Role::Agent),
        scopes: vec![Scope::FilesRead, Scope::SwarmExec],
        vm: None,
        hash: hash(number),
        prefix: secret(number).prefix().to_owned(),
        expires_at: None,
        at: moment(1),
        request_id: Some(format!("create-{name}")),
    }
}

/// Command for the admin key with the secret [`secret`]`(number)`.
pub fn admin_key(number: u8) -> EnsureAdminKey {
    EnsureAdminKey { hash: hash(number), prefix: secret(number).prefix().to_owned(), at: moment(1) }
}

pub fn revocation(account: AccountId, id: KeyId, step: i64) -> RevokeKey {
    RevokeKey { account, id, at: moment(step), request_id: Some(format!("revoke-{step}")) }
}

pub fn booted(account: AccountId, pid: u32) -> VmBooted {
    let metadata =
        [("task".to_owned(), Value::from("süß")), ("deep".to_owned(), serde_json::json!([1, null]))];
    VmBooted {
        parent: None,
        id: VmId::generate(),
        account,
        pid,
        ip: format!("10.77.0.{pid}"),
        template: "base".to_owned(),
        template_id: TemplateId::BASE,
        vcpus: 2,
        memory_mb: 512,
        started_at: moment(i64::from(pid)),
        ticket: None,
        exec_id: None,
        boot: BootReceipt {
            source: BootSource::Cold,
            restore_ms: 100.5,
            identity_ms: 20.25,
            ready_ms: 131.125,
            reseeded: true,
            // The last bit of this number is lost by imprecise parsers.
            clock_step_ms: 1_166_153.949_593,
        },
        attributes: VmAttributes {
            metadata: metadata.into_iter().collect(),
            expires_at: pid.is_multiple_of(2).then(|| moment(60_000)),
            idle_timeout_ms: pid.is_multiple_of(2).then_some(60_000),
            on_idle: if pid.is_multiple_of(2) { OnIdle::PauseToDisk } else { OnIdle::Pause },
            ..VmAttributes::default()
        },
    }
}

pub fn boot(vms: Vec<VmBooted>) -> RecordBoots {
    RecordBoots { vms, at: moment(500), request_id: Some("boot".to_owned()), attempt: None, answer: None }
}

pub fn end(vm: VmId, reason: EndReason, step: i64) -> RecordEnd {
    RecordEnd { vm, reason, at: moment(step), request_id: None, message: None }
}

/// A VM of `EndVms` without a message.
pub fn lost(vm: VmId) -> VmToEnd {
    VmToEnd { vm, message: None }
}

pub async fn all_events(store: &dyn Store) -> Vec<Event> {
    store.events_after(0, 100_000).await.unwrap()
}

/// Number of events by kind.
pub async fn counts(store: &dyn Store) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for event in all_events(store).await {
        *counts.entry(event.kind.as_str()).or_default() += 1;
    }
    counts
}

pub async fn events_of(store: &dyn Store, kind: EventKind) -> Vec<Event> {
    all_events(store).await.into_iter().filter(|event| event.kind == kind).collect()
}
