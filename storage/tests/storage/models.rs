//! Model folders as they arrive from the net: shards, stale indexes, extra files, cut downloads.

use planaria_base::DType;
use planaria_base::tensor_source::TensorSource;
use planaria_storage::safetensors::{Folder, SafetensorsFile, TensorInfo, write, write_sharded};
use std::fs;
use std::path::Path;

fn info(name: &str, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype: DType::F32, shape: shape.to_vec() }
}

/// c, a, b of 16, 8 and 4 bytes, and an empty tensor; each filled with its index plus one.
fn sharded(dir: &Path, shard_bytes: u64) {
    let tensors = [info("c", &[4]), info("a", &[2]), info("b", &[]), info("e", &[0, 3])];
    let bytes = [16, 8, 4, 0];
    write_sharded(dir, &tensors, shard_bytes, |i, out| out.write_all(&vec![i as u8 + 1; bytes[i]]))
        .expect("written");
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("read");
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).expect("written");
}

fn refusal(dir: &Path) -> String {
    Folder::open(dir).expect_err("refused").to_string()
}

const INDEX: &str = "model.safetensors.index.json";

/// One file or shards hold the same, and other files in the folder are not read.
#[test]
fn shards_round_trip_and_strangers_are_ignored() {
    for (shard_bytes, files) in [(1000, 1), (12, 3), (1, 4)] {
        let dir = tempfile::tempdir().expect("a folder");
        sharded(dir.path(), shard_bytes);
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), files);
        let stranger = dir.path().join("adapter.safetensors");
        write(&stranger, &[info("a", &[2])], |_, out| out.write_all(&[9; 8])).expect("written");
        let folder = Folder::open(dir.path()).expect("good");
        assert_eq!(folder.names(), ["a", "b", "c", "e"]);
        assert_eq!(folder.tensor("a").expect("a").bytes, [2; 8]);
        assert_eq!(folder.tensor("c").expect("c").bytes, [1; 16]);
        assert_eq!(folder.tensor("e").expect("e").shape, [0, 3]);
        assert!(folder.notes().is_empty(), "{:?}", folder.notes());
    }
}

/// A missing shard, a tensor in another shard, a name twice, a path outside: each named.
#[test]
fn broken_indexes_are_refused() {
    let first = "model-00001-of-00002.safetensors";
    type Fault<'a> = &'a dyn Fn(&Path);
    let faults: [(Fault<'_>, &str); 5] = [
        (&|d| fs::remove_file(d.join(first)).expect("gone"), first),
        (&|d| edit(&d.join(INDEX), "\"a\"", "\"z\""), "does not hold tensor z"),
        (&|d| edit(&d.join(INDEX), "\"a\"", "\"b\""), "tensor b stands twice"),
        (&|d| edit(&d.join(INDEX), first, "../x.safetensors"), "is not in the folder"),
        (&|d| edit(&d.join(INDEX), "weight_map", "map"), "weight_map"),
    ];
    for (fault, want) in faults {
        let dir = tempfile::tempdir().expect("a folder");
        sharded(dir.path(), 12);
        fault(dir.path());
        let error = refusal(dir.path());
        assert!(error.contains(want), "{error} should say {want}");
    }
    let empty = tempfile::tempdir().expect("a folder");
    assert!(refusal(empty.path()).contains("neither model.safetensors"));
}

/// A wrong total size is a note, and the model loads.
#[test]
fn a_wrong_total_is_a_note() {
    let dir = tempfile::tempdir().expect("a folder");
    sharded(dir.path(), 12);
    edit(&dir.path().join(INDEX), "\"total_size\": 28", "\"total_size\": 29");
    let folder = Folder::open(dir.path()).expect("good");
    let notes = folder.notes();
    assert!(notes.len() == 1 && notes[0].contains("says 29"), "{notes:?}");
}

/// Cut anywhere, empty, or with bytes behind: refused with the file's name.
#[test]
fn cut_and_grown_files_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    sharded(dir.path(), 1000);
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).expect("read");
    for cut in (0..whole.len()).chain([whole.len() + 1, whole.len() + 4096]) {
        let mut bytes = whole.clone();
        bytes.resize(cut, 0);
        fs::write(&path, bytes).expect("written");
        let error = SafetensorsFile::open(&path).expect_err("refused").to_string();
        let want = if cut < whole.len() { "truncated" } else { "belong to none" };
        assert!(error.contains(want) && error.contains("model.safetensors"), "{cut}: {error}");
    }
}

/// 200,000 tensors are below the limit, and a claimed header of 2^60 bytes costs nothing.
#[test]
fn many_tensors_load() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors: Vec<TensorInfo> = (0..200_000).map(|i| info(&format!("t{i}"), &[1])).collect();
    let path = dir.path().join("many.safetensors");
    write(&path, &tensors, |_, out| out.write_all(&[0; 4])).expect("written");
    assert_eq!(SafetensorsFile::open(&path).expect("good").names().len(), 200_000);
    fs::write(&path, (1u64 << 60).to_le_bytes()).expect("written");
    let error = SafetensorsFile::open(&path).expect_err("refused").to_string();
    assert!(error.contains("the limit is 100000000"), "{error}");
}
