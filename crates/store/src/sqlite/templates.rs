//! Templates in SQLite.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, named_params, params};
use serde_json::json;
use skep_api::{
    AccountId, TemplateId, VmId, VmName,
    swarm::BASE_TEMPLATE,
    templates::{Template, TemplateName, TemplateSource, TemplateState},
};

use super::{
    SqliteStore, accounts,
    columns::{Columns, execute, millis, query_all, query_optional, signed, to_json},
    error::SqliteError,
    events::{self, NewEvent},
    tickets,
};
use crate::{
    AccountDisk, CreateTemplate, DeleteTemplate, EnsureBaseTemplate, Error, EventKind, IdempotentRequest,
    KnownTemplate, ListTemplates, RecordSnapshot, RecordTemplateState, TemplatePage, TemplateStatus,
    TemplateStore, VmBooted,
};

/// How many users of a template the error for its deletion names.
const MAX_NAMED_USERS: usize = 3;

/// A query of the records that an account sees. Parameter: `?1` account.
macro_rules! select {
    ($($rest:literal),*) => {
        concat!(
            "SELECT t.*, parents.name AS parent_name,
                 (SELECT count(*) FROM templates AS c WHERE c.parent = t.id AND c.account = ?1) AS children,
                 (SELECT count(*) FROM vms WHERE template_id = t.id AND vms.account = ?1 AND ended_at IS NULL) AS vms
             FROM templates AS t LEFT JOIN templates AS parents ON parents.id = t.parent
             WHERE (t.account = ?1 OR t.public = 1) ",
            $($rest),*
        )
    };
}

#[async_trait]
impl TemplateStore for SqliteStore {
    async fn ensure_base_template(&self, command: EnsureBaseTemplate) -> crate::Result<()> {
        self.writer.run(move |c| ensure_base(c, command)).await
    }

    async fn stored_template_answer(
        &self,
        account: AccountId,
        once: IdempotentRequest,
        at: Timestamp,
    ) -> crate::Result<Option<Template>> {
        self.readers.run(move |c| tickets::find_answer(c, account, &once, at)).await
    }

    async fn create_template(&self, command: CreateTemplate) -> crate::Result<Template> {
        self.writer.run(move |c| create(c, &command)).await
    }

    async fn template(&self, account: AccountId, reference: &str) -> crate::Result<Template> {
        let reference = reference.to_owned();
        self.readers.run(move |c| find(c, account, &reference)).await
    }

    async fn list_templates(&self, query: ListTemplates) -> crate::Result<TemplatePage> {
        self.readers.run(move |c| list(c, query)).await
    }

    async fn delete_template(&self, command: DeleteTemplate) -> crate::Result<Template> {
        self.writer.run(move |c| delete(c, &command)).await
    }

    async fn record_template_state(&self, command: RecordTemplateState) -> crate::Result<bool> {
        self.writer.run(move |c| record_state(c, &command)).await
    }

    async fn record_snapshot(&self, command: RecordSnapshot) -> crate::Result<Template> {
        self.writer.run(move |c| record_snapshot(c, &command)).await
    }

    async fn account_disk(&self, account: AccountId) -> crate::Result<AccountDisk> {
        self.readers.run(move |c| account_disk(c, account)).await
    }

    async fn known_templates(&self) -> crate::Result<Vec<KnownTemplate>> {
        self.readers.run(known).await
    }
}

fn ensure_base(connection: &Connection, command: EnsureBaseTemplate) -> Result<(), SqliteError> {
    execute(
        connection,
        "INSERT INTO templates (id, name, source, state, memory_mb, vcpus, disk_mb, public, created_at)
         VALUES (:id, :name, :source, :state, :memory_mb, :vcpus, :disk_mb, 1, :at)
         ON CONFLICT (id) DO UPDATE SET
             memory_mb = excluded.memory_mb, vcpus = excluded.vcpus, disk_mb = excluded.disk_mb
         WHERE (templates.memory_mb, templates.vcpus, templates.disk_mb)
               IS NOT (excluded.memory_mb, excluded.vcpus, excluded.disk_mb)",
        named_params! {
            ":id": TemplateId::BASE.to_string(),
            ":name": BASE_TEMPLATE,
            ":source": TemplateSource::Base.as_str(),
            ":state": TemplateState::Building.as_str(),
            ":memory_mb": signed(command.size.memory_mb)?,
            ":vcpus": command.size.vcpus,
            ":disk_mb": signed(command.size.disk_mb)?,
            ":at": millis(command.at),
        },
    )?;
    Ok(())
}

fn create(connection: &Connection, command: &CreateTemplate) -> Result<Template, SqliteError> {
    accounts::by_id(connection, command.account)?;
    find(connection, command.account, &command.parent.to_string())?;
    require_room(connection, command)?;
    execute(
        connection,
        "INSERT INTO templates (id, account, name, source, parent, state, memory_mb, vcpus, disk_mb, egress, public,
                                description, created_at)
         VALUES (:id, :account, :name, :source, :parent, :state, :memory_mb, :vcpus, :disk_mb, :egress, 0,
                 :description, :at)",
        named_params! {
            ":id": command.id.to_string(),
            ":account": command.account.to_string(),
            ":name": command.name.as_str(),
            ":source": command.source.as_str(),
            ":parent": command.parent.to_string(),
            ":state": TemplateState::Building.as_str(),
            ":memory_mb": signed(command.size.memory_mb)?,
            ":vcpus": command.size.vcpus,
            ":disk_mb": signed(command.size.disk_mb)?,
            ":egress": command.egress.as_ref().map(to_json).transpose()?,
            ":description": command.description,
            ":at": millis(command.at),
        },
    )?;
    let event = NewEvent {
        account: command.account,
        kind: EventKind::TemplateBuilding,
        body: json!({ "template": command.id, "name": command.name }),
        at: command.at,
        request_id: command.request_id.as_deref(),
    };
    events::append(connection, &event)?;
    let made = find(connection, command.account, &command.id.to_string())?;
    if let Some(once) = &command.once {
        tickets::store_answer(connection, command.account, once, command.at, &made)?;
    }
    Ok(made)
}

/// Fails if the name is taken, or the account has as many templates or builds as it may have.
fn require_room(connection: &Connection, command: &CreateTemplate) -> Result<(), SqliteError> {
    let name = || command.name.clone();
    if command.name.as_str() == BASE_TEMPLATE {
        return Err(Error::TemplateNameTaken { name: name() }.into());
    }
    let own = "SELECT count(*) AS templates, count(*) FILTER (WHERE state = ?2) AS building,
                      count(*) FILTER (WHERE name = ?3) AS named
               FROM templates WHERE account = ?1";
    let building = TemplateState::Building.as_str();
    let counted = query_optional(
        connection,
        own,
        params![command.account.to_string(), building, name().as_str()],
        |row| Ok([row.number::<u32>("templates")?, row.number("building")?, row.number("named")?]),
    )?;
    let [templates, building, named] = counted.unwrap_or_default();
    if named > 0 {
        return Err(Error::TemplateNameTaken { name: name() }.into());
    }
    if templates >= command.max_templates {
        return Err(Error::TooManyTemplates { most: command.max_templates }.into());
    }
    if building >= command.max_building {
        return Err(Error::TooManyBuilds { most: command.max_building }.into());
    }
    Ok(())
}

fn find(connection: &Connection, account: AccountId, reference: &str) -> Result<Template, SqliteError> {
    let sql = select!("AND (t.id = ?2 OR t.name = ?2) ORDER BY t.account IS NOT ?1, t.id LIMIT 1");
    let found = query_optional(connection, sql, [&account.to_string(), reference], decode)?;
    found.ok_or_else(|| unknown(reference))
}

fn list(connection: &Connection, query: ListTemplates) -> Result<TemplatePage, SqliteError> {
    let after = query.after.map(|id| id.to_string()).unwrap_or_default();
    let limit = usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX);
    let mut templates = query_all(
        connection,
        select!("AND t.id > ?2 ORDER BY t.id LIMIT ?3"),
        // One more row than the page size shows whether there is a next page.
        params![query.account.to_string(), after, i64::from(query.limit.max(1)) + 1],
        decode,
    )?;
    let more = templates.len() > limit;
    templates.truncate(limit);
    let next = templates.last().filter(|_| more).map(|last| last.id);
    Ok(TemplatePage { templates, next })
}

fn delete(connection: &Connection, command: &DeleteTemplate) -> Result<Template, SqliteError> {
    let template = find(connection, command.account, &command.id.to_string())?;
    if template.account != Some(command.account) {
        return Err(Error::TemplateProtected { name: template.name }.into());
    }
    let users = users(connection, command)?;
    if !users.is_empty() {
        return Err(Error::TemplateInUse { name: template.name, users }.into());
    }
    execute(connection, "DELETE FROM templates WHERE id = ?1", [command.id.to_string()])?;
    let event = NewEvent {
        account: command.account,
        kind: EventKind::TemplateDeleted,
        body: json!({ "template": template.id, "name": template.name }),
        at: command.at,
        request_id: command.request_id.as_deref(),
    };
    events::append(connection, &event)?;
    Ok(template)
}

/// Describes the live VMs and the templates that need this one. Those of other accounts are only counted.
fn users(connection: &Connection, command: &DeleteTemplate) -> Result<String, SqliteError> {
    let (id, account) = (command.id.to_string(), command.account.to_string());
    let vms = "SELECT id, name, account = ?2 AS own FROM vms WHERE template_id = ?1 AND ended_at IS NULL ORDER BY id";
    let vms = query_all(connection, vms, [&id, &account], |row| {
        let (vm, name): (VmId, Option<VmName>) = (row.parse("id")?, row.parse_optional("name")?);
        let label = name.map_or_else(|| vm.to_string(), |name| format!("{vm} ({name})"));
        Ok(row.get::<bool>("own")?.then_some(label))
    })?;
    let children = "SELECT name, account = ?2 AS own FROM templates WHERE parent = ?1 ORDER BY id";
    let children = query_all(connection, children, [&id, &account], |row| {
        let name: TemplateName = row.parse("name")?;
        Ok(row.get::<bool>("own")?.then(|| format!("`{name}`")))
    })?;
    let lists = [("VM", vms), ("template", children)];
    Ok(lists
        .into_iter()
        .filter_map(|(what, users)| name_some(what, &users))
        .collect::<Vec<_>>()
        .join(" and "))
}

/// Names the first users, and how many more there are. `None` without users.
fn name_some(what: &str, users: &[Option<String>]) -> Option<String> {
    let named: Vec<&str> = users.iter().flatten().take(MAX_NAMED_USERS).map(String::as_str).collect();
    let plural = if users.len() == 1 { "" } else { "s" };
    match (named.len(), users.len() - named.len()) {
        (0, 0) => None,
        (0, others) => Some(format!("{others} {what}{plural} of other accounts")),
        (_, 0) => Some(format!("{what}{plural} {}", named.join(", "))),
        (_, more) => Some(format!("{what}{plural} {} and {more} more", named.join(", "))),
    }
}

/// Deletes the templates of an account that is deleted.
pub(super) fn delete_all(connection: &Connection, account: AccountId) -> Result<(), SqliteError> {
    execute(connection, "DELETE FROM templates WHERE account = ?1", [account.to_string()])?;
    Ok(())
}

/// Records that a VM was booted from its template; fails if the template was deleted during the boot.
pub(super) fn record_use(connection: &Connection, vm: &VmBooted, at: Timestamp) -> Result<(), SqliteError> {
    let sql = "UPDATE templates SET last_used_at = ?2 WHERE id = ?1";
    let found = execute(connection, sql, params![vm.template_id.to_string(), millis(at)])? == 1;
    // `base` has a record only once the server has compared records and files.
    if found || vm.template_id == TemplateId::BASE { Ok(()) } else { Err(unknown(&vm.template)) }
}

fn record_state(connection: &Connection, command: &RecordTemplateState) -> Result<bool, SqliteError> {
    let RecordTemplateState { template, status, at } = command;
    let sql = "SELECT id, account, name, source, state, error FROM templates WHERE id = ?1";
    let Some(before) = query_optional(connection, sql, [template.to_string()], decode_known)? else {
        return Ok(false);
    };
    let progress = match status {
        TemplateStatus::Building { progress } => progress.as_deref(),
        _ => None,
    };
    let (key, size_bytes, own_bytes) = match status {
        TemplateStatus::Ready { key, size_bytes, own_bytes } => {
            (Some(key), Some(signed(*size_bytes)?), Some(signed(*own_bytes)?))
        }
        _ => (None, None, None),
    };
    let state = status.state();
    let changed = execute(
        connection,
        "UPDATE templates SET state = :state, progress = :progress, error = :error, key = coalesce(:key, key),
                              size_bytes = coalesce(:size_bytes, size_bytes),
                              own_bytes = coalesce(:own_bytes, own_bytes)
         WHERE id = :id AND (state, progress, error) IS NOT (:state, :progress, :error)
            OR id = :id AND :key IS NOT NULL
               AND (key, size_bytes, own_bytes) IS NOT (:key, :size_bytes, :own_bytes)",
        named_params! {
            ":id": template.to_string(),
            ":state": state.as_str(),
            ":progress": progress,
            ":error": status.reason(),
            ":key": key,
            ":size_bytes": size_bytes,
            ":own_bytes": own_bytes,
        },
    )? == 1;
    let kind = match state {
        TemplateState::Ready => Some(EventKind::TemplateReady),
        TemplateState::Failed => Some(EventKind::TemplateFailed),
        TemplateState::Outdated => Some(EventKind::TemplateOutdated),
        TemplateState::Building | TemplateState::Damaged => None,
    };
    // The template `base` belongs to no account that would see its events.
    if let (Some(kind), Some(account)) = (kind.filter(|_| before.state != state), before.account) {
        let mut body = json!({ "template": template, "name": before.name });
        if let Some(reason) = status.reason() {
            body["reason"] = reason.into();
        }
        events::append(connection, &NewEvent { account, kind, body, at: *at, request_id: None })?;
    }
    Ok(changed)
}

fn record_snapshot(connection: &Connection, command: &RecordSnapshot) -> Result<Template, SqliteError> {
    let RecordSnapshot { account, template, status, vm, pid, at, request_id, .. } = command;
    record_state(connection, &RecordTemplateState { template: *template, status: status.clone(), at: *at })?;
    // A snapshot can be outdated from the beginning, and has its files nevertheless.
    let sql = "UPDATE templates SET size_bytes = ?2, own_bytes = ?3 WHERE id = ?1";
    let (size_bytes, own_bytes) = (signed(command.size_bytes)?, signed(command.own_bytes)?);
    execute(connection, sql, params![template.to_string(), size_bytes, own_bytes])?;
    let stored = find(connection, *account, &template.to_string())?;
    let body = json!({ "vm": vm, "pid": pid, "template": template, "name": stored.name });
    let (kind, request_id) = (EventKind::VmSnapshotted, request_id.as_deref());
    events::append(connection, &NewEvent { account: *account, kind, body, at: *at, request_id })?;
    Ok(stored)
}

fn account_disk(connection: &Connection, account: AccountId) -> Result<AccountDisk, SqliteError> {
    let limits = accounts::by_id(connection, account)?.limits;
    let occupied = query_optional(
        connection,
        "SELECT sum(CASE WHEN own_bytes IS NOT NULL THEN own_bytes
                         WHEN state = ?2 AND source <> ?3 THEN memory_mb << 20
                         ELSE 0 END) AS bytes
         FROM templates WHERE account = ?1",
        params![account.to_string(), TemplateState::Building.as_str(), TemplateSource::Vm.as_str()],
        |row| row.optional_number("bytes"),
    )?;
    Ok(AccountDisk { limits, templates_bytes: occupied.flatten().unwrap_or_default() })
}

fn known(connection: &Connection) -> Result<Vec<KnownTemplate>, SqliteError> {
    query_all(
        connection,
        "SELECT id, account, name, source, state, error FROM templates ORDER BY id",
        [],
        decode_known,
    )
}

fn decode_known(row: &Columns<'_>) -> Result<KnownTemplate, SqliteError> {
    Ok(KnownTemplate {
        id: row.parse("id")?,
        account: row.parse_optional("account")?,
        name: row.parse("name")?,
        source: row.parse("source")?,
        state: row.parse("state")?,
        reason: row.get("error")?,
    })
}

fn unknown(reference: &str) -> SqliteError {
    Error::UnknownTemplate { template: reference.to_owned() }.into()
}

fn decode(row: &Columns<'_>) -> Result<Template, SqliteError> {
    Ok(Template {
        name: row.parse("name")?,
        id: row.parse("id")?,
        source: row.parse("source")?,
        parent: row.parse_optional("parent_name")?,
        state: row.parse("state")?,
        progress: row.get("progress")?,
        error: row.get("error")?,
        memory_mb: row.number("memory_mb")?,
        vcpus: row.number("vcpus")?,
        disk_mb: row.number("disk_mb")?,
        size_bytes: row.optional_number("size_bytes")?,
        own_bytes: row.optional_number("own_bytes")?,
        egress: row.optional_json("egress")?,
        public: row.get("public")?,
        description: row.get("description")?,
        account: row.parse_optional("account")?,
        created_at: row.time("created_at")?,
        last_used_at: row.optional_time("last_used_at")?,
        children: row.number("children")?,
        vms: row.number("vms")?,
    })
}
