use super::*;

fn second(number: i64) -> Timestamp {
    Timestamp::from_second(1_000 + number).unwrap()
}

fn load(cpu_ms: u64, memory_mb: u64) -> Load {
    Load { cpu_us: cpu_ms * 1000, held_bytes: memory_mb << 20, disk_bytes: 0 }
}

/// Records a sample of VMs, each with its account, processor time and memory.
fn record(history: &MetricsHistory, at: i64, vms: &[(VmId, AccountId, u64, u64)]) {
    let sampled =
        vms.iter().map(|(vm, account, ..)| SampledVm { vm: *vm, account: *account, pid: 7 }).collect();
    let loads = vms.iter().map(|(vm, _, cpu, memory)| (*vm, load(*cpu, *memory))).collect();
    history.record(second(at), sampled, &loads);
}

#[test]
fn an_account_sees_its_own_vms_and_their_share_of_processors() {
    let history = MetricsHistory::default();
    let (ours, theirs) = (AccountId::generate(), AccountId::generate());
    let a = VmId::generate();
    let b = VmId::generate_after(Some(a));
    let c = VmId::generate_after(Some(b));
    record(&history, 0, &[(b, ours, 1_000, 10), (c, theirs, 0, 99)]);
    record(&history, 2, &[(b, ours, 2_000, 20), (a, ours, 500, 5), (c, theirs, 2_000, 99)]);
    record(&history, 4, &[(a, ours, 501, 5)]);
    let found = history.after(ours, None);
    assert!(!found.truncated);
    let [first, second_one, third] = found.samples.as_slice() else { panic!("{found:?}") };
    assert_eq!((first.at, first.totals.vms, first.vms[0].cpu_percent), (second(0), 1, None));
    let shares: Vec<_> = second_one.vms.iter().map(|vm| (vm.id, vm.cpu_ms, vm.cpu_percent)).collect();
    assert_eq!(shares, [(a, 500, None), (b, 2_000, Some(50.0))], "by id, a new VM without a share");
    assert_eq!(second_one.totals, SampleTotals { vms: 2, cpu_percent: 50.0, memory_mb: 25 });
    assert_eq!((third.totals.vms, third.vms[0].cpu_percent), (1, Some(0.1)));
    let others = history.after(theirs, None).samples;
    assert_eq!(others.iter().map(|one| one.totals.memory_mb).collect::<Vec<_>>(), [99, 99, 0]);
    assert_eq!(others[1].totals.cpu_percent, 100.0);
    assert!(history.after(AccountId::generate(), None).samples.iter().all(|one| one.vms.is_empty()));
    let later = history.after(ours, Some(second(2))).samples;
    assert_eq!((later.len(), later[0].vms[0].cpu_percent), (1, Some(0.1)), "the sample before counts");
}

#[test]
fn a_clock_that_is_set_back_gives_no_share() {
    let history = MetricsHistory::default();
    let (account, vm) = (AccountId::generate(), VmId::generate());
    record(&history, 4, &[(vm, account, 0, 1)]);
    record(&history, 2, &[(vm, account, 2_000, 1)]);
    assert_eq!(history.after(account, None).samples[1].vms[0].cpu_percent, None);
}

#[test]
fn a_sample_is_not_after_its_own_time_in_milliseconds() {
    let (history, account) = (MetricsHistory::default(), AccountId::generate());
    let at = second(0) + jiff::SignedDuration::from_micros(1_700);
    history.record(at, Vec::new(), &HashMap::new());
    let sample = history.after(account, None).samples.remove(0);
    let named: Timestamp = format!("{:.3}", sample.at).parse().unwrap();
    assert!(history.after(account, Some(named)).samples.is_empty(), "{sample:?}");
    assert_eq!(history.position(Some(named)), history.position(None));
    assert!(sample.totals.cpu_percent.is_sign_positive(), "{sample:?}");
}

#[test]
fn fifteen_minutes_are_kept() {
    let history = MetricsHistory::default();
    for at in 0..1_000 {
        record(&history, at * 2, &[]);
    }
    let samples = history.after(AccountId::generate(), None).samples;
    assert_eq!((samples.len(), samples[0].at), (450, second(1_100)));
}

#[test]
fn samples_of_a_thousand_vms_fit_the_limit_and_those_of_more_are_dropped() {
    let account = AccountId::generate();
    let vms = |count: usize| {
        let mut last = None;
        let next = || {
            last = Some(VmId::generate_after(last));
            (last.unwrap(), account, 0, 1)
        };
        std::iter::repeat_with(next).take(count).collect::<Vec<_>>()
    };
    assert_eq!(size_of::<Point>(), 32);
    for (count, taken, kept) in [(1_000, 460, 450), (10_000, 60, 52)] {
        let (history, vms) = (MetricsHistory::default(), vms(count));
        for at in 0..taken {
            record(&history, at * 2, &vms);
        }
        let samples = history.samples();
        assert_eq!(samples.kept.len(), kept, "{count}");
        assert!(samples.bytes <= MAX_BYTES, "{count}: {}", samples.bytes);
    }
}

#[test]
fn an_answer_has_the_newest_samples_that_fit() {
    let (history, account) = (MetricsHistory::default(), AccountId::generate());
    let mut last = None;
    let vms: Vec<_> = std::iter::repeat_with(|| {
        last = Some(VmId::generate_after(last));
        (last.unwrap(), account, 0, 1)
    })
    .take(2_000)
    .collect();
    for at in 0..200 {
        record(&history, at * 2, &vms);
    }
    let found = history.after(account, None);
    assert!(found.truncated && !found.samples.is_empty());
    assert_eq!(found.samples.last().unwrap().at, second(398));
    assert!(!history.after(account, Some(second(390))).truncated);
}

#[tokio::test]
async fn a_follower_gets_each_sample_once_and_may_begin_in_the_past() {
    let (history, account) = (MetricsHistory::default(), AccountId::generate());
    record(&history, 0, &[]);
    record(&history, 2, &[]);
    let (next, sample) = history.next(account, history.position(Some(second(0)))).await;
    assert_eq!(sample.at, second(2));
    assert_eq!(next, history.position(None));
    assert_eq!(history.position(Some(second(99))), next, "a time to come begins now");
    let follower = tokio::spawn({
        let history = history.clone();
        async move {
            let (next, first) = history.next(account, next).await;
            let (_, second) = history.next(account, next).await;
            (first.at, second.at)
        }
    });
    tokio::task::yield_now().await;
    assert!(!follower.is_finished());
    record(&history, 4, &[]);
    record(&history, 6, &[]);
    assert_eq!(follower.await.unwrap(), (second(4), second(6)));
}
