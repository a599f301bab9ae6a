//! Only https is accepted, whether the server or a proxy terminates TLS.

use reqwest::Method;
use skep_server::{TrustedProxies, check_address};

use crate::harness::{Options, Skep, refused};

async fn behind(network: &str) -> Skep {
    let proxies = TrustedProxies::new(vec![network.parse().unwrap()]);
    Skep::start_with(Options { proxies, ..Options::default() }).await
}

#[tokio::test]
async fn requests_without_https_are_refused_everywhere() {
    let skep = behind("127.0.0.0/8").await;
    for path in ["/api/health", "/api/whoami", "/api/openapi.json", "/", "/nothing"] {
        for proto in [None, Some("http"), Some("https, http"), Some("")] {
            let request = skep.request(Method::GET, path);
            let request =
                proto.iter().fold(request, |request, proto| request.header("x-forwarded-proto", *proto));
            let refused = refused(request.send().await.unwrap()).await;
            assert_eq!((refused.status, refused.code.as_str()), (403, "https_required"), "{path} {proto:?}");
            assert_eq!(refused.message, "HTTPS required");
        }
        let request = skep.request(Method::GET, path).header("x-forwarded-proto", "https");
        assert_ne!(request.send().await.unwrap().status(), 403, "{path}");
    }
}

#[tokio::test]
async fn requests_that_bypass_the_proxy_are_refused() {
    let skep = behind("10.0.0.0/8").await;
    for path in ["/api/health", "/api/whoami"] {
        let request = skep.request(Method::GET, path).header("x-forwarded-proto", "https");
        let request = request.header("x-forwarded-for", "10.0.0.1");
        let refused = refused(request.send().await.unwrap()).await;
        assert_eq!((refused.status, refused.code.as_str()), (403, "https_required"), "{path}");
    }
}

#[test]
fn plain_text_is_served_on_loopback_or_behind_a_guard() {
    for (address, guarded, allowed) in [
        ("127.0.0.1:1", false, true),
        ("[::1]:1", false, true),
        ("[::ffff:127.0.0.1]:1", false, true),
        ("0.0.0.0:1", false, false),
        ("[::]:1", false, false),
        ("192.0.2.1:1", false, false),
        ("0.0.0.0:1", true, true),
    ] {
        let outcome = check_address(address.parse().unwrap(), guarded);
        assert_eq!(outcome.is_ok(), allowed, "{address} {guarded}");
        if let Err(error) = outcome {
            let message = error.to_string();
            for way_out in [address, "--tls-cert", "--tls self-signed", "--trusted-proxy", "127.0.0.1"] {
                assert!(message.contains(way_out), "{message}");
            }
        }
    }
}
