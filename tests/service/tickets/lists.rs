//! Lists of tickets: filters, orders, pages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Skep, refused};

/// All pages of a list, of three each.
async fn all(skep: &Skep, query: &str) -> Vec<Value> {
    let (mut tickets, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = skep.read(&format!("/api/tickets?limit=3{query}{cursor}")).await;
        let found = page["tickets"].as_array().unwrap();
        assert!(found.len() <= 3);
        tickets.extend(found.iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { return tickets };
        assert!(!found.is_empty());
        cursor = format!("&cursor={next}");
    }
}

fn ids(tickets: &[Value]) -> Vec<String> {
    tickets.iter().map(|ticket| ticket["id"].as_str().unwrap().to_owned()).collect()
}

/// A query, and the predicate that its tickets must meet.
type Filter<'a> = (&'a str, Box<dyn Fn(&Value) -> bool + 'a>);

fn one_of(ticket: &Value, field: &str, allowed: &[&str]) -> bool {
    allowed.contains(&ticket[field].as_str().unwrap())
}

fn has_labels(ticket: &Value, labels: &[&str]) -> bool {
    labels.iter().all(|label| ticket["labels"].as_array().unwrap().contains(&json!(label)))
}

async fn some_tickets(skep: &Skep) -> String {
    let first = skep.simple("first").await;
    for number in 0..24 {
        let priority = ["low", "medium", "high", "critical"][number % 4];
        let mut body = json!({"title": format!("{number}"), "priority": priority});
        if number % 3 == 0 {
            body["dependencies"] = json!([first]);
        }
        body["labels"] = match number % 5 {
            0 => json!(["plan/a", "gpu"]),
            1 => json!(["gpu"]),
            2 => json!(["plan/a"]),
            _ => json!([]),
        };
        let id = skep.ticket(body).await;
        match number {
            1 | 4 | 7 => drop(skep.changed(&id, json!({"assignee": "agent-1"})).await),
            2 | 5 => drop(skep.changed(&id, json!({"status": "completed", "assignee": "agent-1"})).await),
            6 | 8 => drop(skep.changed(&id, json!({"status": "failed"})).await),
            _ => {}
        }
    }
    first
}

#[tokio::test]
async fn each_filter_and_order_gives_every_ticket_once() {
    let skep = Skep::start().await;
    let first = some_tickets(&skep).await;
    let everything = skep.read("/api/tickets").await["tickets"].as_array().unwrap().clone();
    assert_eq!(everything.len(), 25);
    let filters: Vec<Filter<'_>> = vec![
        ("", Box::new(|_| true)),
        ("&status=pending", Box::new(|one| one_of(one, "status", &["pending"]))),
        ("&status=in_progress,failed", Box::new(|one| one_of(one, "status", &["in_progress", "failed"]))),
        ("&priority=high,low", Box::new(|one| one_of(one, "priority", &["high", "low"]))),
        ("&assignee=agent-1", Box::new(|one| one["assignee"] == "agent-1")),
        (
            "&assignee=agent-1&status=completed",
            Box::new(|one| one["assignee"] == "agent-1" && one["status"] == "completed"),
        ),
        ("&assignee=nobody", Box::new(|_| false)),
        ("&ready=true", Box::new(|one| one["ready"] == true)),
        ("&ready=false&status=pending", Box::new(|one| one["ready"] == false && one["status"] == "pending")),
        ("&depends_on={first}", Box::new(|one| one["dependencies"] == json!([first]))),
        (
            "&depends_on={first}&status=failed",
            Box::new(|one| one["dependencies"] == json!([first]) && one["status"] == "failed"),
        ),
    ];
    check_all(&skep, &everything, &first, &filters).await;
}

#[tokio::test]
async fn lists_by_label_give_every_ticket_that_has_all_of_them_once() {
    let skep = Skep::start().await;
    let first = some_tickets(&skep).await;
    let everything = skep.read("/api/tickets").await["tickets"].as_array().unwrap().clone();
    let filters: Vec<Filter<'_>> = vec![
        ("&label=gpu", Box::new(|one| has_labels(one, &["gpu"]))),
        ("&label=gpu,plan/a", Box::new(|one| has_labels(one, &["gpu", "plan/a"]))),
        ("&label=plan", Box::new(|_| false)),
        (
            "&label=gpu&assignee=agent-1&status=in_progress,completed",
            Box::new(|one| has_labels(one, &["gpu"]) && one["assignee"] == "agent-1"),
        ),
        (
            "&label=plan/a&ready=true&priority=high,low",
            Box::new(|one| {
                has_labels(one, &["plan/a"])
                    && one["ready"] == true
                    && one_of(one, "priority", &["high", "low"])
            }),
        ),
        (
            "&label=plan/a&depends_on={first}",
            Box::new(|one| has_labels(one, &["plan/a"]) && one["dependencies"] == json!([first])),
        ),
    ];
    check_all(&skep, &everything, &first, &filters).await;
}

/// Each filter, in each order, page by page.
async fn check_all(skep: &Skep, everything: &[Value], first: &str, filters: &[Filter<'_>]) {
    let rank = |ticket: &Value| {
        ["critical", "high", "medium", "low"].iter().position(|one| ticket["priority"] == *one).unwrap()
    };
    for (query, fits) in filters {
        let query = query.replace("{first}", first);
        let mut expected: Vec<Value> = everything.iter().filter(|one| fits(one)).cloned().collect();
        assert_eq!(ids(&all(skep, &query).await), ids(&expected), "{query}");
        expected.sort_by_key(|one| (rank(one), one["id"].as_str().unwrap().to_owned()));
        assert_eq!(ids(&all(skep, &format!("{query}&sort=priority")).await), ids(&expected), "{query}");
        let key = |one: &Value| {
            (one["updated_at"].as_str().unwrap().to_owned(), one["id"].as_str().unwrap().to_owned())
        };
        expected.sort_by_key(key);
        expected.reverse();
        assert_eq!(ids(&all(skep, &format!("{query}&sort=-updated_at")).await), ids(&expected), "{query}");
    }
}

fn numbered_labels(count: usize) -> String {
    (0..count).map(|number| format!("label-{number}")).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn a_cursor_belongs_to_its_filter() {
    let skep = Skep::start().await;
    some_tickets(&skep).await;
    let page = skep.read("/api/tickets?limit=3&status=pending,failed").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    // The same filter in another spelling, and another limit.
    let next = skep.read(&format!("/api/tickets?limit=5&status=failed,pending&cursor={cursor}")).await;
    let both: BTreeSet<String> =
        [&page, &next].iter().flat_map(|one| ids(one["tickets"].as_array().unwrap())).collect();
    assert_eq!(both.len(), 8);
    for (query, word) in [
        (format!("status=pending&cursor={cursor}"), "another filter"),
        (format!("status=pending,failed&sort=priority&cursor={cursor}"), "another filter"),
        (format!("status=pending,failed&cursor={}.x", cursor.split('.').next().unwrap()), "cursor"),
        ("cursor=x".to_owned(), "cursor"),
        ("status=done".to_owned(), "status"),
        ("limit=0".to_owned(), "limit"),
        ("limit=1001".to_owned(), "limit"),
        ("sort=age".to_owned(), "sort"),
        ("ready=maybe".to_owned(), "ready"),
        ("depends_on=x".to_owned(), "depends_on"),
        ("label=A".to_owned(), "`label`: `A` is not a label"),
        ("label=a,".to_owned(), "`` is not a label"),
        (format!("label={}", numbered_labels(33)), "`label` has 33 entries"),
    ] {
        let found = refused(skep.get(&format!("/api/tickets?{query}")).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, "invalid_value"), "{query}");
        assert!(found.message.contains(word), "{query}: {}", found.message);
    }
}

#[tokio::test]
async fn a_page_of_large_records_ends_early_and_the_next_goes_on() {
    let skep = Skep::start().await;
    let result = json!({"x": "x".repeat(1_000_000)});
    for number in 0..10 {
        let id = skep.simple(&format!("{number}")).await;
        skep.changed(&id, json!({"status": "completed", "result": result})).await;
    }
    let page = skep.read("/api/tickets").await;
    let (found, next) = (page["tickets"].as_array().unwrap().len(), page["next_cursor"].as_str().unwrap());
    assert!((1..10).contains(&found), "{found}");
    let rest = skep.read(&format!("/api/tickets?cursor={next}")).await;
    assert_eq!(found + rest["tickets"].as_array().unwrap().len(), 10);
}
