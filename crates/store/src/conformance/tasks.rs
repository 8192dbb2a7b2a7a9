use super::fixture::Fixture;
use std::collections::BTreeSet;

pub(super) async fn offers_add_up(t: &Fixture) {
    let names = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| name.to_string()).collect() };
    assert_eq!(t.tasks().await.expect("tasks"), names(&[]));
    t.offer(&names(&[])).await.expect("offer");
    t.offer(&names(&["mail", "echo"])).await.expect("offer");
    t.offer(&names(&["mail", "o'clock"])).await.expect("offer");
    t.at_once(8, |store| async move {
        let both = BTreeSet::from(["late".to_string(), "mail".to_string()]);
        store.offer(&both).await.expect("offer");
    })
    .await;
    assert_eq!(t.tasks().await.expect("tasks"), names(&["echo", "late", "mail", "o'clock"]));
}
