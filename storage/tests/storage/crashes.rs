//! A save that ends after every possible operation leaves the old or the new checkpoint, whole.

use crate::breaking::{BreakingDisk, Fault};
use planaria_base::tensor_source::TensorSource;
use planaria_base::{DType, Digest, RunId, Step};
use planaria_storage::checkpoint::{CheckpointError, Checkpoints, SaveRequest};
use planaria_storage::safetensors::TensorInfo;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn save(to: &Checkpoints, step: u64) -> Result<PathBuf, CheckpointError> {
    let info =
        |name: &str| TensorInfo { name: name.into(), dtype: DType::F32, shape: vec![300_000] };
    let request = SaveRequest {
        run: RunId([7; 16]),
        step: Step(step),
        updates: step,
        state_hash: Digest::of(&[step as u8]),
        spec: serde_json::json!({ "model": "toy" }),
        extra: serde_json::Value::Null,
        tensors: vec![info("w"), info("w.moment")],
    };
    to.save(&request, |_, out| out.write_all(&vec![step as u8; 1_200_000]))
}

/// The newest good step, its bytes checked.
fn newest(dir: &Path) -> u64 {
    let (found, _) = Checkpoints::open(dir).newest_good().expect("a good checkpoint");
    let step = found.manifest.step.0;
    let state = found.state().expect("state");
    assert!(state.tensor("w").expect("w").bytes.iter().all(|&b| b == step as u8));
    step
}

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).expect("a folder").count()
}

/// Operations of one undisturbed save, the folder's opening included.
fn operations() -> usize {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = BreakingDisk::new(usize::MAX, Fault::Crash);
    let to = Checkpoints::create_on(Arc::new(disk.clone()), dir.path()).expect("made");
    save(&to, 1).expect("saved");
    disk.operations()
}

/// A crash after each operation; then a new process cleans up and saves the same step again.
#[test]
fn every_prefix_of_a_save_leaves_a_whole_checkpoint() {
    let all = operations();
    assert!(all > 10, "{all} operations");
    let mut seen = [0; 2];
    for at in 0..all {
        let dir = tempfile::tempdir().expect("a folder");
        save(&Checkpoints::create(dir.path()).expect("made"), 1).expect("saved");
        let disk = Arc::new(BreakingDisk::new(at, Fault::Crash));
        if let Ok(to) = Checkpoints::create_on(disk, dir.path()) {
            let _ = save(&to, 2);
        }
        seen[newest(dir.path()) as usize - 1] += 1;
        let again = Checkpoints::create(dir.path()).expect("opened");
        save(&again, 2).expect("saved again");
        assert_eq!((newest(dir.path()), names(dir.path())), (2, 2), "crash at {at} of {all}");
    }
    assert!(seen[0] > 0 && seen[1] > 0, "both outcomes happen: {seen:?}");
}

/// A full or broken disk at each operation: the error is named, the old checkpoint stays, and no
/// part of the new one is left.
#[test]
fn an_error_at_each_operation_is_reported() {
    for (code, want) in [(libc::ENOSPC, "No space left"), (libc::EIO, "Input/output error")] {
        // The last operation only removes what lies aside, which is gone after the rename.
        for at in 0..operations() - 1 {
            let dir = tempfile::tempdir().expect("a folder");
            save(&Checkpoints::create(dir.path()).expect("made"), 1).expect("saved");
            let disk = Arc::new(BreakingDisk::new(at, Fault::Errno(code)));
            let saved = Checkpoints::create_on(disk, dir.path()).and_then(|to| save(&to, 2));
            let error = saved.expect_err("the error is not swallowed").to_string();
            assert!(error.contains(want), "{error}");
            let step = newest(dir.path());
            assert_eq!(names(dir.path()), step as usize, "error {code} at {at}");
        }
    }
}

/// Another state under the same name is never mistaken for a twin.
#[test]
fn a_different_state_of_the_same_step_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let to = Checkpoints::create(dir.path()).expect("made");
    let path = save(&to, 1).expect("saved");
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("read");
    let other = text.replace(&Digest::of(&[1]).to_string(), &Digest::of(b"x").to_string());
    fs::write(&manifest, other).expect("written");
    let error = save(&to, 1).expect_err("another state").to_string();
    assert!(error.contains("nothing was replaced"), "{error}");
}

/// A broken checkpoint of that name gives way to the new save.
#[test]
fn a_broken_twin_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    let to = Checkpoints::create(dir.path()).expect("made");
    let path = save(&to, 1).expect("saved");
    fs::remove_file(path.join("manifest.json")).expect("gone");
    let verdicts = to.verify().expect("read");
    assert!(verdicts.len() == 1 && verdicts[0].1.is_err());
    save(&to, 1).expect("saved again");
    assert_eq!((newest(dir.path()), names(dir.path())), (1, 1));
}
