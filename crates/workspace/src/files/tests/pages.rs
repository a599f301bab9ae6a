//! Pages of a folder are limited by their size, and no entry is lost between two pages.

use std::os::unix::{ffi::OsStringExt, fs::symlink};

use skep_api::budget::{MAX_ANSWER_BYTES, json_len};

use super::*;

#[tokio::test]
async fn a_page_of_long_names_and_targets_ends_by_its_bytes() {
    let fixture = Fixture::new();
    let folder = fixture.at("links");
    fs::create_dir(&folder).unwrap();
    let count = 900;
    for number in 0..count {
        let mut name = format!("{number}-").into_bytes();
        name.resize(255, 0xff);
        symlink("\u{1}".repeat(4_000), folder.join(std::ffi::OsString::from_vec(name))).unwrap();
    }
    let (mut seen, mut pages, mut after) = (0, 0, None);
    for _ in 0..count {
        let page = fixture
            .run(ListFolder { path: fixture.path("links"), limit: 1_000, cursor: after })
            .await
            .unwrap();
        assert!(json_len(&page.entries) <= MAX_ANSWER_BYTES);
        seen += page.entries.len();
        pages += 1;
        after = page.next_cursor;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (count, 2));
}
