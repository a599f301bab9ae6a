//! Completions and manual pages, made from the command line itself.

use std::{
    fs,
    process::{Command, Output},
};

use crate::harness::binary;

fn skep(arguments: &[&str]) -> Output {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output
}

/// What bash offers for the last of these words.
fn completed_by_bash(arguments: &[&str]) -> Vec<String> {
    let script = r#"
        eval "$("$SKEP" completions bash)"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _skep skep "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .args(arguments)
        .env("SKEP", binary())
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_and_options() {
    assert_eq!(completed_by_bash(&["skep", "boo"]), ["boot"]);
    assert_eq!(completed_by_bash(&["skep", "boot", "--keep"]), ["--keep-vm"]);
    assert_eq!(completed_by_bash(&["skep", "ticket", "hist"]), ["history"]);
    // What skep starts itself by is not offered.
    assert!(completed_by_bash(&["skep", "server-pro"]).iter().all(String::is_empty));
}

#[test]
fn other_shells_are_given_their_own_scripts() {
    for (shell, beginning) in [("zsh", "#compdef skep"), ("fish", "# Print an optspec")] {
        let script = String::from_utf8(skep(&["completions", shell]).stdout).unwrap();
        assert!(script.starts_with(beginning) && script.contains("keep-vm"), "{shell}: {script:.200}");
    }
}

#[test]
fn each_verb_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    skep(&["man", "--dir", pages.to_str().unwrap()]);
    for (page, text) in
        [("skep.1", "skep-boot(1)"), ("skep-boot.1", "keep"), ("skep-ticket-history.1", "skep")]
    {
        let page = fs::read_to_string(pages.join(page)).unwrap();
        // A hyphen is written `\-`.
        assert!(page.contains(".TH skep") && page.replace(r"\-", "-").contains(text), "{page}");
    }
    assert!(!pages.join("skep-ticket-help.1").exists());
    let one = String::from_utf8(skep(&["man"]).stdout).unwrap();
    assert!(one.contains(".SH NAME"), "{one}");
}
