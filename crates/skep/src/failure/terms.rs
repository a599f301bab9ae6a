//! Translates the API's operations and fields in messages to the command's verbs and flags.

use skep_api::ErrorCode;

use crate::invocation::Invocation;

/// API operations and the verbs that call them. `*` matches one segment of a path.
const VERBS: [(&str, &str); 57] = [
    ("GET /api/swarm/status", "skep ps"),
    ("GET /api/vms", "skep ps"),
    ("POST /api/swarm/boot", "skep boot"),
    ("POST /api/swarm/cleanup", "skep cleanup"),
    ("DELETE /api/swarm/vm/*", "skep end"),
    ("PATCH /api/swarm/vm/*", "skep rename"),
    ("POST /api/swarm/vm/*/exec", "skep exec"),
    ("GET /api/templates", "skep template list"),
    ("GET /api/templates/*", "skep template show"),
    ("POST /api/templates", "skep template create"),
    ("DELETE /api/templates/*", "skep template rm"),
    ("POST /api/exec", "skep exec"),
    ("GET /api/ls", "skep ls"),
    ("GET /api/files/read", "skep cat"),
    ("POST /api/files/write", "skep write"),
    ("GET /api/files/search", "skep find"),
    ("GET /api/files/grep", "skep grep"),
    ("GET /api/files/watch", "skep watch"),
    ("POST /api/files/move", "skep mv"),
    ("POST /api/mkdir", "skep mkdir"),
    ("DELETE /api/files", "skep rm"),
    ("GET /api/git/status", "skep git status"),
    ("GET /api/git/diff", "skep git diff"),
    ("GET /api/git/log", "skep git log"),
    ("GET /api/git/branch", "skep git branch"),
    ("POST /api/git/branch", "skep git branch"),
    ("GET /api/git/worktree", "skep git worktree"),
    ("POST /api/git/worktree", "skep git worktree"),
    ("POST /api/git/init", "skep git init"),
    ("POST /api/git/clone", "skep git clone"),
    ("POST /api/git/tag", "skep git tag"),
    ("GET /api/git/credentials", "skep git credentials list"),
    ("POST /api/git/credentials", "skep git credentials set"),
    ("POST /api/git/add", "skep git add"),
    ("POST /api/git/commit", "skep git commit"),
    ("POST /api/git/push", "skep git push"),
    ("POST /api/git/pull", "skep git pull"),
    ("GET /api/keys", "skep keys list"),
    ("POST /api/keys", "skep keys create"),
    ("DELETE /api/keys", "skep keys revoke --all"),
    ("DELETE /api/keys/*", "skep keys revoke"),
    ("POST /api/keys/*/rotate", "skep keys rotate"),
    ("GET /api/accounts", "skep account list"),
    ("POST /api/accounts", "skep account create"),
    ("PATCH /api/accounts/*", "skep account set"),
    ("DELETE /api/accounts/*", "skep account delete"),
    ("GET /api/tickets", "skep ticket list"),
    ("GET /api/tickets/*", "skep ticket show"),
    ("POST /api/tickets", "skep ticket create"),
    ("POST /api/tickets/claim", "skep ticket claim"),
    ("GET /api/webhooks", "skep webhook list"),
    ("GET /api/webhooks/*", "skep webhook show"),
    ("PATCH /api/webhooks/*", "skep webhook update"),
    ("GET /api/webhooks/*/deliveries", "skep webhook deliveries"),
    ("GET /api/events", "skep events"),
    ("GET /api/audit", "skep audit"),
    ("GET /api/whoami", "skep whoami"),
];

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Fields whose flag has a different name.
const FLAG_ALIASES: [(&str, &str); 13] = [
    ("scopes", "scope"),
    ("roots", "root"),
    ("allowed_ips", "allowed_ip"),
    ("types", "type"),
    ("ttl_ms", "ttl"),
    ("idle_timeout_ms", "idle_timeout"),
    ("memory_mb", "memory"),
    ("disk_mb", "disk"),
    ("dependencies", "after"),
    ("ref", "revision"),
    ("to", "revision"),
    ("files", "files"),
    ("enabled", "enable"),
];

/// Error codes whose message names fields but quotes no names that callers chose: such a name may equal that of a flag.
const ABOUT_FIELDS: [ErrorCode; 15] = [
    ErrorCode::InvalidValue,
    ErrorCode::MissingParameter,
    ErrorCode::UnknownField,
    ErrorCode::FieldTooLarge,
    ErrorCode::NotEmpty,
    ErrorCode::AlreadyExists,
    ErrorCode::NothingToCommit,
    ErrorCode::AccountInUse,
    ErrorCode::ClaimLost,
    ErrorCode::WebhookDisabled,
    ErrorCode::UnknownPath,
    ErrorCode::NotADirectory,
    ErrorCode::PathOutsideRoots,
    ErrorCode::Blocked,
    ErrorCode::NotYet,
];

/// Replaces operations with verbs and, if the code is about fields, fields with flags.
pub(super) fn to_command_terms(message: &str, code: Option<ErrorCode>, invocation: &Invocation) -> String {
    let message = with_verbs(message);
    if code.is_some_and(|code| ABOUT_FIELDS.contains(&code)) {
        with_flags(&message, invocation)
    } else {
        message
    }
}

fn with_verbs(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while let Some((at, length, verb)) = first_operation(rest) {
        let quoted = rest[..at].ends_with('`');
        text.push_str(&rest[..at]);
        let quote = if quoted { "" } else { "`" };
        text.extend([quote, verb, quote]);
        rest = &rest[at + length..];
    }
    text + rest
}

/// The first operation that has a verb: its offset, its length, and the verb.
fn first_operation(text: &str) -> Option<(usize, usize, &'static str)> {
    let starts = text.match_indices(" /api/").filter_map(|(blank, _)| {
        let method = METHODS.into_iter().find(|method| text[..blank].ends_with(method))?;
        let path = text[blank + 1..].split([' ', '`', ';', ',', ')', '?']).next()?;
        Some((blank - method.len(), method, path))
    });
    starts.into_iter().find_map(|(at, method, path)| {
        let verb = verb_of(method, path)?;
        Some((at, method.len() + 1 + path.len(), verb))
    })
}

fn verb_of(method: &str, path: &str) -> Option<&'static str> {
    let matches = |operation: &str| {
        let Some((other, pattern)) = operation.split_once(' ') else { return false };
        let (mut given, mut wanted) = (path.split('/'), pattern.split('/'));
        other == method
            && loop {
                match (given.next(), wanted.next()) {
                    (None, None) => break true,
                    (Some(given), Some(wanted)) if wanted == given || wanted == "*" => {}
                    _ => break false,
                }
            }
    };
    VERBS.iter().find(|(operation, _)| matches(operation)).map(|(_, verb)| *verb)
}

/// Replaces each `field`, `field: true` or `field=true` in backticks if it is an argument of the verb.
fn with_flags(message: &str, invocation: &Invocation) -> String {
    let parts = message.split('`').enumerate();
    let flagged = parts.map(|(index, part)| {
        let field = part.strip_suffix(": true").or_else(|| part.strip_suffix("=true")).unwrap_or(part);
        let flag = if index % 2 == 1 { flag_of(field, invocation) } else { None };
        flag.unwrap_or(part)
    });
    flagged.collect::<Vec<_>>().join("`")
}

fn flag_of<'invocation>(field: &str, invocation: &'invocation Invocation) -> Option<&'invocation str> {
    let find = |id: &str| {
        let found = invocation.arguments.iter().find(|(argument, _)| argument == id);
        found.map(|(_, written)| written.as_str())
    };
    let renamed = || FLAG_ALIASES.iter().find(|(name, _)| *name == field).and_then(|(_, id)| find(id));
    find(field).or_else(renamed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn invocation(line: &str) -> Invocation {
        let matches = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
        Invocation::of(&Cli::command(), &matches)
    }

    #[test]
    fn each_verb_of_the_table_exists() {
        for (operation, verb) in VERBS {
            let mut command = Cli::command();
            let mut words = verb.split(' ').skip(1);
            for word in words.by_ref().take_while(|word| !word.starts_with('-')) {
                let found = command.find_subcommand(word).cloned();
                command = found.unwrap_or_else(|| panic!("{operation}: `{verb}`"));
            }
        }
    }

    #[test]
    fn operations_and_fields_become_verbs_and_flags() {
        use skep_workspace::git::GitError;
        let path = || "/srv/p".to_owned();
        let nothing = GitError::NothingToCommit { path: path() };
        let commit = invocation("skep git commit -m x");
        assert_eq!(
            to_command_terms(&nothing.to_string(), Some(nothing.code()), &commit),
            "there is nothing to commit in `/srv/p`: stage changes by `skep git add`, or pass `--allow-empty`"
        );
        let vm = skep_api::Failure::unknown_vm("9");
        assert_eq!(
            to_command_terms(&vm.message, Some(vm.code), &invocation("skep ps")),
            "no VM `9` in this account; `skep ps` lists its VMs"
        );
        let delete = invocation("skep account delete acme");
        let in_use = skep_store::Error::AccountInUse { name: "acme".to_owned(), vms: 2 };
        let text = to_command_terms(&in_use.to_string(), Some(in_use.code()), &delete);
        assert!(text.contains("`--force`"), "{text}");
        let webhook =
            "the webhook `whk_1` is disabled; enable it by `PATCH /api/webhooks/whk_1` with `enabled: true`";
        let text =
            to_command_terms(webhook, Some(ErrorCode::WebhookDisabled), &invocation("skep webhook list"));
        assert!(text.contains("by `skep webhook update` with"), "{text}");
    }

    #[test]
    fn names_chosen_by_callers_are_not_translated() {
        let boot = invocation("skep boot");
        for (message, code) in [
            ("no VM `template` in this account", ErrorCode::UnknownVm),
            ("no ticket `count`", ErrorCode::UnknownTicket),
            ("no such path; GET /api/openapi.json lists all", ErrorCode::UnknownRoute),
        ] {
            assert_eq!(to_command_terms(message, Some(code), &boot), message);
        }
    }
}
