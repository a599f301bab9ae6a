//! Searches, summaries, graphs and counts of tickets.

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::{Scope, TicketId};

use crate::harness::{Skep, done, refused};

fn ids(page: &Value) -> Vec<&str> {
    page["tickets"].as_array().unwrap().iter().map(|ticket| ticket["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_search_takes_its_text_literally_and_in_any_case() {
    let skep = Skep::start().await;
    let parser = skep.simple("Port the PARSER").await;
    let percent = skep.simple("100 % done_").await;
    let quoted = skep.simple("it's \"so\" \\ here").await;
    for (q, expected) in [
        ("parser", vec![&parser]),
        ("%25", vec![&percent]),
        ("e_", vec![&percent]),
        ("p_r", vec![]),
        ("it%27s+%22SO%22", vec![&quoted]),
        ("%5C", vec![&quoted]),
        ("%27+OR+1%3D1+--", vec![]),
        (&parser.to_uppercase(), vec![&parser]),
        ("tkt_", vec![&parser, &percent, &quoted]),
    ] {
        let page = skep.read(&format!("/api/tickets?q={q}")).await;
        assert_eq!(ids(&page), expected, "{q}");
        assert!(page.get("truncated").is_none());
    }
    for wrong in ["", &"x".repeat(201)] {
        let found = refused(skep.get(&format!("/api/tickets?q={wrong}")).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, "invalid_value"), "{}", found.message);
    }
    let first = skep.read("/api/tickets?q=tkt_&limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let next = skep.read(&format!("/api/tickets?q=tkt_&limit=1&cursor={cursor}")).await;
    assert_eq!(ids(&next), [&percent]);
    let other = refused(skep.get(&format!("/api/tickets?q=tkt&limit=1&cursor={cursor}")).await).await;
    assert_eq!(other.code, "invalid_value", "a cursor belongs to its search");
}

#[tokio::test]
async fn a_summary_leaves_out_the_fields_of_any_size() {
    let skep = Skep::start().await;
    let body = json!({"title": "a", "description": "long", "metadata": {"a": 1}, "labels": ["x"]});
    let id = skep.ticket(body).await;
    skep.changed(&id, json!({"status": "completed", "result": {"b": 2}})).await;
    let full = skep.read("/api/tickets").await["tickets"][0].clone();
    let summary = skep.read("/api/tickets?view=summary").await["tickets"][0].clone();
    let mut expected = full.as_object().unwrap().clone();
    for field in ["description", "result", "metadata"] {
        assert!(!expected.remove(field).unwrap().is_null(), "{field}");
    }
    assert_eq!(summary, Value::Object(expected));
    assert_eq!(skep.read("/api/tickets?view=full").await["tickets"][0], full);
}

#[tokio::test]
async fn the_graph_of_a_ticket_has_at_most_a_thousand_and_says_so() {
    let skep = Skep::start().await;
    let alone = skep.simple("alone").await;
    let mut last = skep.simple("first").await;
    let first = last.clone();
    for part in 0..3 {
        let tickets: Vec<Value> = (0..500)
            .map(|number: usize| {
                let need = number.checked_sub(1).map_or(last.clone(), |before| format!("ref:{before}"));
                json!({"ref": number.to_string(), "title": format!("{part}-{number}"), "dependencies": [need]})
            })
            .collect();
        let made =
            done(skep.call(Method::POST, "/api/tickets/batch", &json!({"tickets": tickets})), 201).await;
        last = made["refs"]["499"].as_str().unwrap().to_owned();
    }
    let page = skep.read("/api/tickets?view=summary").await;
    assert_eq!((ids(&page).len(), page["next_cursor"].is_string()), (500, true), "a page by default");
    let page = skep.read(&format!("/api/tickets?related_to={first}&view=summary&limit=1000")).await;
    assert_eq!(
        (ids(&page).len(), &page["truncated"], &page["next_cursor"]),
        (1_000, &json!(true), &Value::Null)
    );
    assert_eq!(ids(&page)[0], first);
    // 1,000 is the maximum number of dependencies of a ticket.
    let needs_all = json!({"title": "needs all", "dependencies": ids(&page)});
    let page = skep.read(&format!("/api/tickets?related_to={last}&q=2-499")).await;
    assert_eq!(ids(&page), [&last]);
    let page = skep.read(&format!("/api/tickets?related_to={alone}")).await;
    assert_eq!((ids(&page), &page["truncated"]), (vec![alone.as_str()], &json!(false)));
    let needs_all = skep.ticket(needs_all).await;
    let message = skep.conflict(&needs_all, json!({"assignee": "x"}), "blocked").await;
    assert!(message.contains("and 990 more"), "{message}");
}

#[tokio::test]
async fn a_graph_of_another_account_is_unknown() {
    let skep = Skep::start().await;
    let ours = skep.simple("ours").await;
    let other = skep.other_account("acme").await;
    let key = skep.key_of(&other, &[Scope::TicketsRead]).await;
    for id in [ours.clone(), TicketId::generate().to_string()] {
        let path = format!("/api/tickets?related_to={id}");
        let found = refused(skep.bare(Method::GET, &path).bearer_auth(&key).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"));
    }
    let totals = done(skep.bare(Method::GET, "/api/tickets/summary").bearer_auth(&key), 200).await;
    assert_eq!(totals["pending"], 0);
    // The control: its own account sees both.
    assert_eq!(ids(&skep.read(&format!("/api/tickets?related_to={ours}")).await), [&ours]);
    assert_eq!(skep.read("/api/tickets/summary").await["pending"], 1);
}

#[tokio::test]
async fn tickets_are_counted_by_status_and_by_what_they_wait_for() {
    let skep = Skep::start().await;
    let first = skep.simple("first").await;
    skep.ticket(json!({"title": "blocked", "dependencies": [first]})).await;
    skep.ticket(json!({"title": "later", "not_before": "2999-01-01T00:00:00Z"})).await;
    let failed = skep.simple("failed").await;
    skep.changed(&failed, json!({"status": "failed"})).await;
    let held = skep.simple("held").await;
    skep.changed(&held, json!({"assignee": "agent-1"})).await;
    let expected = json!({
        "pending": 3, "in_progress": 1, "completed": 0, "failed": 1, "ready": 1, "blocked": 1, "waiting": 1
    });
    assert_eq!(skep.read("/api/tickets/summary").await, expected);
    let client = skep.client(&skep.admin);
    assert_eq!(json!(client.ticket_totals().await.unwrap().value), expected);
}
