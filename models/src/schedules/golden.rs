//! Every schedule against DeepSpeed's arithmetic, update by update (`tests/golden/make_schedules.py`).

use super::ScheduleSpec;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    spec: ScheduleSpec,
    rates: Vec<f64>,
    /// The first beta, where the schedule moves it.
    betas: Vec<f64>,
}

/// 64 updates of each: warm-up, the turn, the end and beyond it.
#[test]
fn schedules_step_as_deepspeeds_do() {
    let table = include_str!("../../tests/golden/schedules.json");
    let cases: Vec<Case> = serde_json::from_str(table).expect("our own file");
    for Case { spec, rates, betas } in &cases {
        assert_eq!(rates.len(), 64);
        let moved = (0..64).filter_map(|it| spec.betas(it));
        assert_eq!(moved.clone().count(), betas.len(), "{spec:?}");
        for (got, want) in moved.zip(betas) {
            assert!((got[0] - want).abs() <= 1e-14 && got[1] == 0.99, "{spec:?}: {got:?} {want}");
        }
        for (it, want) in (0..).zip(rates) {
            let got = spec.rate(it);
            assert!(
                (got - want).abs() <= 1e-14 * want.abs() + 1e-18,
                "{spec:?} {it}: {got} {want}"
            );
        }
    }
}
