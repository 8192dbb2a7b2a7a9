use super::build::{Draft, failure, forged, rescue, retry, success};
use super::fixture::{Fixture, MOMENT};
use crate::{Keep, OutputFilter, OutputPage, Piece, Signed, Store, Streamed};
use everbeat_model::lease::Shown;
use everbeat_model::output::{Item, OutputKind};
use everbeat_model::run::Claimed;
use everbeat_model::{Next, RunId, Settled};

const HEARD: Signed = Signed::Accepted { cancel_asked: false };
const MUCH: Keep = Keep { bytes: 1 << 30, items: 1 << 30 };

pub(super) async fn what_is_streamed_reads_back_as_it_was_given(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    assert_eq!(page(t, run).await, OutputPage::empty());
    let texts = ["{\"b\":1.0,\"a\":\"\\u0000\"}", "", "it's 🦀;--\n\"$1\" ?1", "null"];
    let items = [OutputKind::Output, OutputKind::Log, OutputKind::Log, OutputKind::Output];
    let items: Vec<Item> = items.into_iter().zip(texts).map(|(kind, text)| Item { kind, text: text.into() }).collect();
    let piece = Piece { shown: claimed.lease.shown(), after: 0, items: items.clone() };
    assert_eq!(told(t, piece).await, HEARD);
    let OutputPage { items: kept, first, last } = page(t, run).await;
    assert_eq!((first, last), (1, 4));
    for (place, item) in kept.iter().enumerate() {
        assert_eq!((item.seq, item.attempt), (place as u64 + 1, 1));
        assert_eq!(Item { kind: item.kind, text: item.text.clone() }, items[place]);
        assert!(item.at > claimed.lease.granted_at && item.at == kept[0].at, "the time of the store");
    }
    assert_eq!(kept.len(), 4);
    t.end(success(&claimed)).await;
    assert_eq!(page(t, run).await.items, kept, "also when the run is finished");
}

pub(super) async fn numbers_rise_across_attempts_and_kinds_without_a_gap(t: &Fixture) {
    let first = t.running().await;
    let (run, replica) = (first.lease.run_id, first.lease.replica_id);
    told(t, output(&first, 0, &["a", "b"])).await;
    told(t, log(&first, 2, &["c"])).await;
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(replica).await;
    told(t, log(&second, 0, &["d"])).await;
    t.end(failure(&second)).await;
    t.reopen(run, 2).await.expect("reopen");
    let third = t.take_one(replica).await;
    told(t, output(&third, 0, &["e"])).await;
    let kept = page(t, run).await;
    let short: Vec<_> = kept.items.iter().map(|item| (item.seq, item.attempt, &*item.text)).collect();
    assert_eq!(short, [(1, 1, "a"), (2, 1, "b"), (3, 1, "c"), (4, 2, "d"), (5, 3, "e")]);
    assert_eq!((kept.first, kept.last), (1, 5));
    let other = t.accept(t.draft()).await;
    assert_eq!(page(t, other).await, OutputPage::empty(), "each run has its own");
}

pub(super) async fn a_piece_that_is_sent_again_is_kept_once(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    let piece = || output(&claimed, 0, &["a", "b"]);
    for _ in 0..2 {
        assert_eq!(told(t, piece()).await, HEARD);
    }
    let parts = vec![output(&claimed, 0, &["a"]), output(&claimed, 1, &["b"]), output(&claimed, 2, &["c"])];
    assert_eq!(t.append(parts, MUCH).await.expect("append"), [HEARD; 3], "in parts, and one that is new");
    assert_eq!(texts(t, run).await, ["a", "b", "c"]);
    t.end(retry(&claimed, Next::Ready)).await;
    let second = t.take_one(claimed.lease.replica_id).await;
    told(t, output(&second, 0, &["a"])).await;
    assert_eq!(texts(t, run).await, ["a", "b", "c", "a"], "another attempt is another speaker");
}

pub(super) async fn of_one_piece_sent_many_times_at_once_one_is_kept(t: &Fixture) {
    let claimed = t.running().await;
    for after in [0, 2, 4] {
        let append = |store: std::sync::Arc<dyn Store>| {
            let piece = output(&claimed, after, &["a", "b"]);
            async move { store.append(vec![piece], MUCH).await.expect("append") }
        };
        let answers = t.at_once(8, append).await;
        assert!(answers.into_iter().all(|answer| answer == [HEARD]));
    }
    assert_eq!(texts(t, claimed.lease.run_id).await, ["a", "b", "a", "b", "a", "b"]);
}

pub(super) async fn a_zombie_cannot_append_after_its_lease_passed_on(t: &Fixture) {
    let zombie = t.running().await;
    let run = zombie.lease.run_id;
    told(t, output(&zombie, 0, &["1"])).await;
    t.end(rescue(&t.held_of(run).await)).await;
    let late = || output(&zombie, 1, &["666"]);
    assert_eq!(told(t, late()).await, Signed::Fenced, "while the run is ready");
    let second = t.take_one(zombie.lease.replica_id).await;
    assert_eq!(told(t, late()).await, Signed::Fenced, "while another attempt runs");
    let forged = Piece { shown: Shown { token: forged(), ..second.lease.shown() }, ..late() };
    assert_eq!(told(t, forged).await, Signed::Fenced);
    t.end(success(&second)).await;
    assert_eq!(told(t, late()).await, Signed::Fenced, "after the end");
    assert_eq!(told(t, output(&second, 0, &["late"])).await, Signed::Fenced, "of its own end");
    assert_eq!(texts(t, run).await, ["1"]);
}

pub(super) async fn a_former_owner_cannot_append_and_the_new_one_counts_anew(t: &Fixture) {
    let former = t.detached(1).await.remove(0);
    let run = former.lease.run_id;
    told(t, output(&former, 0, &["a", "b"])).await;
    let (owner, heir) = (former.lease.replica_id, t.replica().await);
    t.kill(owner).await;
    let adopted = t.adopt(heir, 10).await.expect("adopt");
    assert_eq!(told(t, output(&former, 2, &["c"])).await, Signed::Fenced);
    let shown = adopted[0].lease.shown();
    let heirs = |text| Piece { shown, ..output(&former, 0, &[text]) };
    let both = vec![output(&former, 2, &["c"]), heirs("d"), heirs("d")];
    assert_eq!(t.append(both, MUCH).await.expect("append"), [Signed::Fenced, HEARD, HEARD]);
    assert_eq!(texts(t, run).await, ["a", "b", "d"]);
}

pub(super) async fn nothing_is_appended_after_the_end_of_an_attempt(t: &Fixture) {
    for _ in 0..10 {
        let claimed = t.running().await;
        let side = std::sync::atomic::AtomicUsize::new(0);
        let act = |store: std::sync::Arc<dyn Store>| {
            let nth = side.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let claimed = claimed.clone();
            async move {
                if nth == 2 {
                    assert_eq!(store.settle(vec![success(&claimed)]).await.expect("settle"), [Settled::Done]);
                    let kept = store.output(all(claimed.lease.run_id)).await.expect("output").items.len();
                    return Some(kept);
                }
                store.append(vec![output(&claimed, 0, &["a", "b"])], MUCH).await.expect("append");
                None
            }
        };
        let kept = t.at_once(5, act).await.into_iter().flatten().next();
        assert_eq!(Some(texts(t, claimed.lease.run_id).await.len()), kept, "as many as when it ended");
    }
}

pub(super) async fn a_batch_of_pieces_answers_in_order(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(3).await;
    let c = t.take(replica, 3).await;
    t.end(success(&c[1])).await;
    let batch = vec![
        output(&c[2], 0, &["2"]),
        output(&c[1], 0, &["1"]),
        output(&c[0], 0, &["0", "00"]),
        log(&c[2], 1, &["22"]),
        output(&c[0], 2, &[]),
    ];
    let answers = t.append(batch, MUCH).await.expect("append");
    assert_eq!(answers, [HEARD, Signed::Fenced, HEARD, HEARD, HEARD]);
    let texts = async |place: usize| texts(t, c[place].lease.run_id).await;
    assert_eq!((texts(0).await, texts(1).await, texts(2).await), (words(&["0", "00"]), vec![], words(&["2", "22"])));
    assert_eq!(t.append(Vec::new(), MUCH).await.expect("append"), []);
}

pub(super) async fn an_append_is_a_sign_of_life_and_told_of_a_cancel(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    for (nth, piece) in
        [output(&claimed, 0, &["a"]), output(&claimed, 0, &["a"]), output(&claimed, 1, &[])].into_iter().enumerate()
    {
        let before = t.held_of(run).await;
        assert_eq!(told(t, piece).await, HEARD);
        let after = t.held_of(run).await;
        assert!(after.last_heartbeat_at > before.last_heartbeat_at, "piece {nth}");
        assert_eq!(after.lease, before.lease, "and nothing else");
    }
    t.cancel(run).await.expect("cancel");
    assert_eq!(told(t, output(&claimed, 1, &["b"])).await, Signed::Accepted { cancel_asked: true });
    assert_eq!(texts(t, run).await, ["a", "b"], "and is still kept");
}

pub(super) async fn a_page_is_bounded_and_filtered(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    told(t, output(&claimed, 0, &["aa", "bb"])).await;
    told(t, log(&claimed, 2, &["cc", "dd"])).await;
    told(t, output(&claimed, 4, &["ee"])).await;
    let (output, log) = (Some(OutputKind::Output), Some(OutputKind::Log));
    for (kind, after, limit, bytes, expected) in [
        (None, 0, 10, 100, &["aa", "bb", "cc", "dd", "ee"][..]),
        (None, 3, 10, 100, &["dd", "ee"]),
        (None, 0, 2, 100, &["aa", "bb"]),
        (None, 0, 0, 100, &[]),
        (None, 0, 10, 0, &[]),
        (None, 0, 10, 1, &["aa"]),
        (None, 0, 10, 2, &["aa"]),
        (None, 0, 10, 3, &["aa", "bb"]),
        (None, 5, 10, 100, &[]),
        (None, u64::MAX, 10, 100, &[]),
        (output, 0, 10, 100, &["aa", "bb", "ee"]),
        (output, 2, 1, 100, &["ee"]),
        (log, 0, 10, 3, &["cc", "dd"]),
        (log, 4, 10, 100, &[]),
    ] {
        let filter = OutputFilter { run, kind, after, limit, bytes };
        let page = t.output(filter).await.expect("output");
        assert_eq!(told_texts(&page.items), expected, "{filter:?}");
        assert_eq!((page.first, page.last), (1, 5), "{filter:?}");
    }
}

pub(super) async fn the_oldest_items_go_when_there_are_too_many(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    let keep = Keep { items: 16, ..MUCH };
    for nth in 0..17_u64 {
        t.append(vec![output(&claimed, nth, &[&nth.to_string()])], keep).await.expect("append");
        let page = page(t, run).await;
        // One too many goes with an eighth of all, so that what goes next is not one alone.
        let first = if nth < 16 { 1 } else { 4 };
        assert_eq!((page.first, page.last, page.items.len() as u64), (first, nth + 1, nth + 2 - first), "after {nth}");
        assert_eq!(page.items[0].seq, first);
    }
    let many: Vec<String> = (0..40).map(|nth| nth.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    t.append(vec![output(&claimed, 17, &many)], keep).await.expect("append");
    let kept = page(t, run).await;
    assert_eq!((kept.first, kept.last), (44, 57));
    assert_eq!(told_texts(&kept.items), &many[26..], "also within one piece");
    let before = OutputFilter { after: 10, limit: 1, ..all(run) };
    assert_eq!(t.output(before).await.expect("output").items[0].seq, 44, "a reader is told what is left");
}

pub(super) async fn the_oldest_items_go_when_they_are_too_large(t: &Fixture) {
    let claimed = t.running().await;
    let run = claimed.lease.run_id;
    let keep = Keep { bytes: 80, ..MUCH };
    let text = |length: usize| "x".repeat(length);
    let mut after = 0;
    for (length, first) in
        [(40, 1), (40, 1), (1, 2), (29, 2), (10, 2), (1, 3), (200, 7), (1, 8), (70, 8), (9, 8), (2, 10)]
    {
        t.append(vec![output(&claimed, after, &[&text(length)])], keep).await.expect("append");
        after += 1;
        let page = page(t, run).await;
        assert_eq!((page.first, page.last), (first, after), "after one of {length} bytes");
        assert_eq!(page.items.len() as u64, after + 1 - first);
    }
    let other = t.running().await;
    t.append(vec![output(&other, 0, &[&text(80)])], keep).await.expect("append");
    assert_eq!(page(t, other.lease.run_id).await.items.len(), 1, "each run has its own bound");
}

pub(super) async fn a_forgotten_run_leaves_no_output(t: &Fixture) {
    let replica = t.replica().await;
    for retention in [false, true] {
        let run = t.accept(t.draft()).await;
        let claimed = t.take_one(replica).await;
        told(t, output(&claimed, 0, &["a", "b"])).await;
        t.end(success(&claimed)).await;
        if retention {
            t.advance(MOMENT).await;
            assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 1);
        } else {
            assert!(t.forget(run).await.expect("forget"));
        }
        assert_eq!(page(t, run).await, OutputPage::empty());
        // The same id again begins anew.
        t.accept(Draft::plain(run)).await;
        let claimed = t.take_one(replica).await;
        told(t, output(&claimed, 0, &["c"])).await;
        assert_eq!(texts(t, run).await, ["c"]);
        assert_eq!(page(t, run).await.last, 1);
        t.end(success(&claimed)).await;
        t.forget(run).await.expect("forget");
    }
}

pub(super) async fn a_batch_of_large_pieces_is_kept_whole(t: &Fixture) {
    const LARGE: usize = 1 << 20;
    let replica = t.replica().await;
    t.accept_many(20).await;
    let mut claimed = t.take(replica, 20).await;
    claimed.reverse();
    t.end(success(&claimed[7])).await;
    let text = |place: usize| format!("{place}{}", "x".repeat(LARGE));
    let pieces = claimed.iter().enumerate().map(|(place, claimed)| output(claimed, 0, &[&text(place), "1"]));
    let answers = t.append(pieces.collect(), MUCH).await.expect("append");
    for (place, claimed) in claimed.iter().enumerate() {
        let (answer, kept) = if place == 7 { (Signed::Fenced, vec![]) } else { (HEARD, words(&[&text(place), "1"])) };
        assert_eq!(answers[place], answer, "place {place}");
        assert!(texts(t, claimed.lease.run_id).await == kept, "place {place}");
    }
}

fn output(claimed: &Claimed, after: u64, texts: &[&str]) -> Piece {
    piece(claimed, OutputKind::Output, after, texts)
}

fn log(claimed: &Claimed, after: u64, texts: &[&str]) -> Piece {
    piece(claimed, OutputKind::Log, after, texts)
}

fn piece(claimed: &Claimed, kind: OutputKind, after: u64, texts: &[&str]) -> Piece {
    let items = texts.iter().map(|text| Item { kind, text: (*text).into() }).collect();
    Piece { shown: claimed.lease.shown(), after, items }
}

fn all(run: RunId) -> OutputFilter {
    OutputFilter { run, kind: None, after: 0, limit: 1000, bytes: usize::MAX }
}

async fn told(t: &Fixture, piece: Piece) -> Signed {
    t.append(vec![piece], MUCH).await.expect("append")[0]
}

async fn page(t: &Fixture, run: RunId) -> OutputPage {
    t.output(all(run)).await.expect("output")
}

async fn texts(t: &Fixture, run: RunId) -> Vec<String> {
    words(&told_texts(&page(t, run).await.items))
}

fn told_texts(items: &[Streamed]) -> Vec<&str> {
    items.iter().map(|item| &*item.text).collect()
}

fn words(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}
