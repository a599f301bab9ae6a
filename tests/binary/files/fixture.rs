//! The fixture of tests that run on the server's workspace and in a VM.

use std::{
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::Command,
};

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, send};

/// A test folder in the server's workspace or in a VM.
pub(crate) struct Fixture<'a> {
    pub(crate) skep: &'a Skep,
    /// `None`: the server's workspace.
    pub(crate) vm: Option<u64>,
    pub(crate) dir: String,
}

impl std::fmt::Debug for Fixture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.vm.is_some() { "in a VM," } else { "on the server," }, self.dir)
    }
}

/// Runs a test on the server's workspace, then in a VM.
pub(crate) async fn in_both_places(test: impl AsyncFn(&Fixture<'_>)) {
    let skep = Skep::start().await;
    let vm = skep.boot_one().await;
    for fixture in [Fixture::on_the_server(&skep).await, Fixture::in_vm(&skep, vm).await] {
        test(&fixture).await;
    }
}

impl<'a> Fixture<'a> {
    pub(crate) async fn on_the_server(skep: &'a Skep) -> Self {
        Self::new(skep, None, Self::root_on_the_server(skep).await).await
    }

    pub(crate) async fn root_on_the_server(skep: &Skep) -> String {
        let whoami = skep.get("/api/whoami").await.ok(200);
        whoami["roots"][0].as_str().unwrap().to_owned()
    }

    pub(crate) async fn in_vm(skep: &'a Skep, vm: u64) -> Self {
        Self::new(skep, Some(vm), "/root".to_owned()).await
    }

    async fn new(skep: &'a Skep, vm: Option<u64>, root: String) -> Self {
        let fixture = Self { skep, vm, dir: format!("{root}/suite") };
        let made = fixture.post("/api/mkdir", &json!({"path": fixture.dir})).await;
        assert_eq!(made.status, 201, "{fixture:?}: {made:?}");
        fixture
    }

    /// The path of a name in this folder.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Runs a command in this folder without the API, and returns its output. It must succeed.
    pub(crate) async fn shell(&self, command: &str) -> String {
        if let Some(vm) = self.vm {
            let request = json!({"command": command, "cwd": self.dir, "timeout": 300_000});
            let answer = self.skep.exec_with(vm, &request).await;
            assert_eq!(answer["exit_code"], 0, "{command}: {answer}");
            return answer["stdout"].as_str().unwrap().trim_end().to_owned();
        }
        let owner = std::fs::metadata(&self.dir).unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).current_dir(&self.dir).uid(owner.uid()).gid(owner.gid());
        let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A request about `path`, with more query parameters.
    pub(crate) fn request(
        &self,
        method: Method,
        route: &str,
        path: &str,
        query: &[(&str, &str)],
    ) -> RequestBuilder {
        let mut whole = format!("{route}?path={}", percent_encoded(path));
        for (name, value) in query {
            whole.push_str(&format!("&{name}={}", percent_encoded(value)));
        }
        if let Some(vm) = self.vm {
            whole.push_str(&format!("&vm={vm}"));
        }
        self.skep.request(method, &whole)
    }

    pub(crate) async fn get(&self, route: &str, name: &str, query: &[(&str, &str)]) -> Answer {
        send(self.request(Method::GET, route, &self.at(name), query)).await
    }

    pub(crate) async fn read(&self, name: &str, query: &[(&str, &str)]) -> Answer {
        self.get("/api/files/read", name, query).await
    }

    pub(crate) async fn remove(&self, name: &str, query: &[(&str, &str)]) -> Answer {
        send(self.request(Method::DELETE, "/api/files", &self.at(name), query)).await
    }

    pub(crate) async fn post(&self, route: &str, body: &Value) -> Answer {
        self.skep.post(route, &self.body(body)).await
    }

    pub(crate) async fn write(&self, body: &Value) -> Answer {
        self.post("/api/files/write", body).await
    }

    pub(crate) async fn write_if(&self, body: &Value, header: &'static str, value: &str) -> Answer {
        let request = self.skep.request(Method::POST, "/api/files/write").header(header, value);
        send(request.json(&self.body(body))).await
    }

    fn body(&self, body: &Value) -> Value {
        let mut body = body.clone();
        if let Some(vm) = self.vm {
            body["vm"] = json!(vm);
        }
        body
    }
}

/// A query value with all special bytes percent-encoded.
pub(crate) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
