use proptest::prelude::*;

use super::*;

fn own(key: &str) -> Vec<ConfigEntry> {
    vec![ConfigEntry { key: key.into(), value: Some(b"x".into()) }]
}

fn overrides_for(key: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings = ConfigOverrides { entries: Vec::new(), filters: Vec::new() };
    settings.override_config(&own(key)).map_err(|refused| refused.to_string())?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ok(settings.entries.into_iter().map(|(key, value)| (text(key), text(value))).collect())
}

#[test]
fn config_that_starts_programs_is_overridden() {
    for (key, value) in [
        ("filter.a.b=c.clean", ""),
        ("filter.x.process", ""),
        ("diff.x y.textconv", "cat"),
        ("merge.x.driver", "false"),
        ("remote.o.receivepack", "git-receive-pack"),
    ] {
        assert_eq!(overrides_for(key).unwrap()[0], (key.to_owned(), value.to_owned()));
    }
    assert_eq!(overrides_for("filter.x.clean").unwrap()[1].0, "filter.x.required");
    for key in [
        "include.path",
        "includeif.gitdir:/x.path",
        "remote.x.vcs",
        "hook.a.command",
        "hook.a=b.c.event",
        "hook.jobs",
    ] {
        assert!(overrides_for(key).unwrap_err().contains(key), "{key}");
    }
    for key in ["user.name", "remote.origin.url", "branch.a.b.merge", "nothing"] {
        assert_eq!(overrides_for(key).unwrap(), [], "{key}");
    }
}

#[test]
fn config_written_by_git_has_simple_syntax() {
    let text = b"[core]\n\trepositoryformatversion = 0\n\tfileMode = true\n[remote \"origin\"]\n\turl = https://a.b/c d\n";
    let own = parse_simple_config(text).unwrap();
    assert_eq!(last_value(&own, b"core.filemode"), Some(&b"true"[..]));
    assert_eq!(last_value(&own, b"remote.origin.url"), Some(&b"https://a.b/c d"[..]));
    for odd in [
        "[a]\n\tb = \"c\"",
        "[a] b = c",
        "[a]\n\tb",
        "[a]\n\tb = c\\",
        "\tb = c",
        "[a]\n\tb = c # d",
        "[a]\r\n",
    ] {
        assert_eq!(parse_simple_config(odd.as_bytes()), None, "{odd:?}");
    }
}

#[test]
fn config_that_redirects_network_access_is_refused() {
    for key in
        ["url.x.insteadof", "http.proxy", "http.https://a.b/.proxy", "remote.o.proxy", "fetch.bundleuri"]
    {
        assert!(check_network_config(&own(key)).is_err(), "{key}");
    }
    assert!(check_network_config(&own("remote.origin.url")).is_ok());
    assert!(check_network_config(&own("http.postbuffer")).is_ok());
}

proptest! {
    /// A shell reads back what was quoted.
    #[test]
    fn quoting_is_undone_by_a_shell(text in "[^\\x00]{0,40}") {
        let mut quoted = Vec::new();
        quote(text.as_bytes(), &mut quoted);
        let script = [b"printf %s ".as_slice(), &quoted].concat();
        let script: OsString = std::os::unix::ffi::OsStringExt::from_vec(script);
        let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        prop_assert_eq!(output.stdout, text.as_bytes());
    }

    /// Git reads a file with simple syntax the same way.
    #[test]
    fn plain_settings_mean_what_git_says(
        lines in prop::collection::vec("(\\[[a-zA-Z]{1,3}( \"[a-z.=# ]{1,5}\")?\\]|\t[a-zA-Z]{1,4} = [!-~ ]{1,8}|\tinclude = x|[ -~\t]{0,6})", 0..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let text = lines.join("\n");
        let own = parse_simple_config(text.as_bytes());
        prop_assume!(own.is_some());
        std::fs::write(&file, &text).unwrap();
        let git = std::process::Command::new("git").args(["config", "--list", "-z", "--file"]).arg(&file).output();
        let output = git.unwrap();
        prop_assert!(output.status.success(), "{}", text);
        prop_assert_eq!(own.unwrap(), parse_config_list(&output.stdout), "{}", text);
    }

    #[test]
    fn any_list_is_read(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let own = parse_config_list(&text);
        let _ = parse_simple_config(&text);
        let _ = ConfigOverrides::default().override_config(&own);
        let _ = check_network_config(&own);
    }
}
