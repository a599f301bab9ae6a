use super::*;

#[test]
fn a_template_is_loaded_once_and_only_if_its_memory_is_admitted() {
    let fixture = Fixture::new();
    let id = fixture.add_snapshot(Kind::Snapshot, TemplateId::BASE, building());
    let ready = Ready::of(fixture.inner.folder(id).join("k"), &[]).unwrap();
    fixture.inner.table().templates.get_mut(&id).unwrap().phase = Phase::Ready(ready);
    let templates = BuiltTemplates(Arc::new(fixture.inner));
    let no_memory = || Failure::new(ErrorCode::NoCapacity, "no memory");
    let refused = templates.open(id, &|_| Err(no_memory())).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    assert_eq!((templates.memory_bytes(), templates.deltas()), (0, Vec::new()));

    let admitted = Mutex::new(Vec::new());
    let admit = |bytes: u64| {
        admitted.lock().unwrap().push(bytes);
        Ok::<_, Failure>(MemoryAdmission::default())
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| templates.open(id, &admit).unwrap());
        }
    });
    let admitted = admitted.into_inner().unwrap();
    assert!(admitted.len() == 1 && admitted[0] > 0, "{admitted:?}");
    // Control: what is in memory needs no admission.
    let opened = templates.open(id, &|_| Err(no_memory())).unwrap();
    let delta = FileId::of(&opened.delta.unwrap().data.into()).unwrap();
    assert_eq!(templates.deltas(), [delta]);
}
