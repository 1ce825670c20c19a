//! Checkpoints: a folder of safetensors files and a manifest, published by one rename.
//!
//! A checkpoint is written in a folder aside, its manifest last, flushed, and renamed to
//! `step-<step>-<run>`. A name holds either nothing or a whole checkpoint; what a crash leaves aside
//! is removed when the next writer opens the folder. Files hold masters and moments by parameter: no
//! trace of threads, actors or chunks. See `docs/formats/checkpoint.md`.

mod shared;

pub use shared::SharedSave;

use crate::atomic::{ASIDE, Alive, remove_leftovers};
use crate::disk::{Disk, LocalDisk};
use crate::safetensors::{self, SafetensorsFile, TensorInfo};
use planaria_base::units::format_bytes;
use planaria_base::{Digest, RunId, Step};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Version of the folder's layout.
pub const FORMAT: u32 = 1;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";

/// Name of the file that holds masters and moments.
pub const STATE: &str = "state.safetensors";

/// What a checkpoint says of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The run's name.
    pub run: String,
    /// The step whose result it holds.
    pub step: Step,
    /// Updates applied by then.
    pub updates: u64,
    /// The state's digest.
    pub state_hash: Digest,
    /// The run spec, opaque here.
    pub spec: serde_json::Value,
    /// Whatever else the trainer needs, opaque here: the tokenizer, for one.
    pub extra: serde_json::Value,
    /// All files, with sizes and digests.
    pub files: Vec<FileEntry>,
}

/// One file of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub blake3: Digest,
}

/// Why a checkpoint was not written or read. Older checkpoints are untouched.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Not enough room.
    #[error("a checkpoint needs {}, {} are free on the disk of {path}: free some, or set run.dir to another disk", format_bytes(*.needed), format_bytes(*.free))]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// It is not whole.
    #[error("checkpoint {path} is not good: {reason}")]
    Bad {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is none.
    #[error("no good checkpoint in {path}{}", list(.bad))]
    None {
        /// The folder.
        path: PathBuf,
        /// What is wrong with those that are there.
        bad: Vec<String>,
    },
}

fn list(bad: &[String]) -> String {
    bad.iter().map(|b| format!("\n  {b}")).collect()
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io { action, path, source }
}

/// A checkpoint that was found whole.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Opens a checkpoint folder; `verify` also reads and hashes every file.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn open(path: &Path, verify: bool) -> Result<Checkpoint, CheckpointError> {
        let bad = |reason: String| CheckpointError::Bad { path: path.to_owned(), reason };
        let text = fs::read(path.join(MANIFEST))
            .map_err(|e| bad(format!("its {MANIFEST} cannot be read: {e}")))?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|e| bad(format!("bad {MANIFEST}: {e}")))?;
        if manifest.format != FORMAT {
            return Err(bad(format!("its format is {}, this is {FORMAT}", manifest.format)));
        }
        for entry in &manifest.files {
            check_file(path, entry, verify).map_err(bad)?;
        }
        Ok(Checkpoint { path: path.to_owned(), manifest })
    }

    /// Its masters and moments.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn state(&self) -> Result<SafetensorsFile, CheckpointError> {
        SafetensorsFile::open(&self.path.join(STATE))
            .map_err(|e| CheckpointError::Bad { path: self.path.clone(), reason: e.to_string() })
    }
}

fn check_file(dir: &Path, entry: &FileEntry, verify: bool) -> Result<(), String> {
    if entry.name.contains('/') {
        return Err(format!("{MANIFEST} names {}, which is not in the folder", entry.name));
    }
    let path = dir.join(&entry.name);
    let found = fs::metadata(&path).map_err(|e| format!("{}: {e}", entry.name))?.len();
    if found != entry.bytes {
        return Err(format!("{} has {found} bytes, {} are expected", entry.name, entry.bytes));
    }
    if verify {
        let mut hasher = blake3::Hasher::new();
        let file = File::open(&path).map_err(|e| format!("{}: {e}", entry.name))?;
        hasher.update_reader(file).map_err(|e| format!("{}: {e}", entry.name))?;
        if Digest(*hasher.finalize().as_bytes()) != entry.blake3 {
            return Err(format!("{} is damaged: its BLAKE3 digest differs", entry.name));
        }
    }
    Ok(())
}

/// What is saved, but for the tensors' values.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    /// The run.
    pub run: RunId,
    /// The step.
    pub step: Step,
    /// Updates applied.
    pub updates: u64,
    /// The state's digest.
    pub state_hash: Digest,
    /// The run spec.
    pub spec: serde_json::Value,
    /// Whatever else.
    pub extra: serde_json::Value,
    /// Masters and moments, in order.
    pub tensors: Vec<TensorInfo>,
}

/// A checkpoint's folder, and what it says of itself or what is wrong with it.
pub type Verdict = (PathBuf, Result<Manifest, CheckpointError>);

/// A run's folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Checkpoints {
    /// The checkpoints of a folder, which is made if it is not there. What crashed writers left is
    /// removed.
    ///
    /// # Errors
    /// If the folder cannot be made or cleaned.
    pub fn create(dir: &Path) -> Result<Checkpoints, CheckpointError> {
        Checkpoints::create_on(Arc::new(LocalDisk), dir)
    }

    /// Like [`Checkpoints::create`], on another disk: one that breaks, in tests.
    ///
    /// # Errors
    /// As [`Checkpoints::create`].
    pub fn create_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<Checkpoints, CheckpointError> {
        disk.make_dir(dir).map_err(io_error("make", dir))?;
        remove_leftovers(dir).map_err(io_error("clean", dir))?;
        Ok(Checkpoints { dir: dir.to_owned(), disk })
    }

    /// The checkpoints of a folder, to read: nothing in it is changed.
    #[must_use]
    pub fn open(dir: &Path) -> Checkpoints {
        Checkpoints { dir: dir.to_owned(), disk: Arc::new(LocalDisk) }
    }

    /// Folders of published checkpoints, oldest step first.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let entries = fs::read_dir(&self.dir).map_err(io_error("read", &self.dir))?;
        let mut found: Vec<PathBuf> = entries
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
            .collect();
        found.sort();
        Ok(found)
    }

    /// The newest checkpoint that is whole, every file read and hashed; and what is wrong with the
    /// newer ones.
    ///
    /// # Errors
    /// If there is none.
    pub fn newest_good(&self) -> Result<(Checkpoint, Vec<String>), CheckpointError> {
        let mut bad = Vec::new();
        for path in self.list()?.into_iter().rev() {
            match Checkpoint::open(&path, true) {
                Ok(checkpoint) => return Ok((checkpoint, bad)),
                Err(error) => bad.push(error.to_string()),
            }
        }
        Err(CheckpointError::None { path: self.dir.clone(), bad })
    }

    /// Saves a checkpoint; `fill(i, out)` writes the values of tensor `i`. If one of that name is
    /// there already and whole, it is kept: twins are equal.
    ///
    /// # Errors
    /// If the disk is too small or refuses; nothing is published then.
    pub fn save(
        &self,
        request: &SaveRequest,
        fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> Result<PathBuf, CheckpointError> {
        self.check_space(&request.tensors)?;
        let run = request.run.to_string();
        let name = format!("step-{:010}-{}", request.step.0, &run[..8]);
        let (aside, target) = (self.aside(&name), self.dir.join(name));
        let published = self
            .write(&aside, request, run, fill)
            .and_then(|_alive| self.publish(&aside, &target, &request.state_hash));
        // Refused by a dead disk, too: the next writer removes it then.
        let _ = self.disk.remove_dir(&aside);
        published.map(|()| target)
    }

    fn aside(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{ASIDE}{}-{name}", std::process::id()))
    }

    /// A whole twin that is there already is kept; a broken one gives way.
    fn publish(&self, aside: &Path, target: &Path, hash: &Digest) -> Result<(), CheckpointError> {
        if target.exists() {
            match Checkpoint::open(target, true) {
                Ok(twin) if twin.manifest.state_hash == *hash => return self.flush(),
                Ok(twin) => {
                    let reason = format!(
                        "it holds state {}, this run's is {hash}; nothing was replaced",
                        twin.manifest.state_hash
                    );
                    return Err(CheckpointError::Bad { path: target.to_owned(), reason });
                }
                Err(_) => self.discard(target)?,
            }
        }
        match self.disk.rename_new(aside, target) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Checkpoint::open(target, true).map(|_twin| ())?;
            }
            renamed => renamed.map_err(io_error("publish", target))?,
        }
        self.flush()
    }

    /// Takes a published folder's name away before its files, so that no half of it is ever seen.
    fn discard(&self, path: &Path) -> Result<(), CheckpointError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let gone = self.aside(&format!("gone-{name}"));
        self.disk.rename_new(path, &gone).map_err(io_error("remove", path))?;
        self.disk.remove_dir(&gone).map_err(io_error("remove", &gone))
    }

    fn flush(&self) -> Result<(), CheckpointError> {
        self.disk.sync_dir(&self.dir).map_err(io_error("flush", &self.dir))
    }

    fn check_space(&self, tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
        let elements = |t: &TensorInfo| t.shape.iter().product::<usize>() * t.dtype.bytes();
        let needed = tensors.iter().map(elements).sum::<usize>() as u64 + (1 << 20);
        let free =
            self.disk.free_bytes(&self.dir).map_err(io_error("ask for space of", &self.dir))?;
        if free < needed {
            return Err(CheckpointError::NoSpace { path: self.dir.clone(), needed, free });
        }
        Ok(())
    }

    fn write(
        &self,
        aside: &Path,
        request: &SaveRequest,
        run: String,
        fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> Result<Alive, CheckpointError> {
        self.disk.make_dir(aside).map_err(io_error("make", aside))?;
        let alive = Alive::lock(aside).map_err(io_error("lock", aside))?;
        let path = aside.join(STATE);
        let (blake3, bytes) =
            self.write_state(&path, &request.tensors, fill).map_err(io_error("write", &path))?;
        let manifest = Manifest {
            format: FORMAT,
            run,
            step: request.step,
            updates: request.updates,
            state_hash: request.state_hash,
            spec: request.spec.clone(),
            extra: request.extra.clone(),
            files: vec![FileEntry { name: STATE.to_owned(), bytes, blake3 }],
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other);
        let path = aside.join(MANIFEST);
        text.and_then(|text| {
            let mut file = self.disk.create(&path)?;
            file.write_all(&text)?;
            file.sync()
        })
        .map_err(io_error("write", &path))?;
        self.disk.sync_dir(aside).map_err(io_error("flush", aside))?;
        Ok(alive)
    }

    fn write_state(
        &self,
        path: &Path,
        tensors: &[TensorInfo],
        fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<(Digest, u64)> {
        let mut file = self.disk.create(path)?;
        let written = safetensors::write_to(&mut file, tensors, fill)?;
        file.sync()?;
        Ok(written)
    }

    /// What is wrong with each checkpoint, if anything: every file is read and hashed.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn verify(&self) -> Result<Vec<Verdict>, CheckpointError> {
        let all = self.list()?.into_iter();
        Ok(all.map(|p| (p.clone(), Checkpoint::open(&p, true).map(|c| c.manifest))).collect())
    }

    /// Removes all but the newest `keep_last` checkpoints and those whose step is a multiple of
    /// `keep_every` (0: none). The newest good one is never removed.
    ///
    /// # Errors
    /// If a folder cannot be read or removed.
    pub fn retain(&self, keep_last: u64, keep_every: u64) -> Result<(), CheckpointError> {
        let all = self.list()?;
        let cut = all.len().saturating_sub(keep_last.max(1) as usize);
        let newest_kept_is_good =
            all[cut..].iter().rev().any(|p| Checkpoint::open(p, true).is_ok());
        for path in &all[..cut] {
            let step = Checkpoint::open(path, false).map(|c| c.manifest.step.0);
            let keep = step.is_ok_and(|s| keep_every > 0 && s.is_multiple_of(keep_every));
            if !keep && newest_kept_is_good {
                self.discard(path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_base::DType;
    use planaria_base::tensor_source::TensorSource;

    fn request(step: u64) -> SaveRequest {
        SaveRequest {
            run: RunId([7; 16]),
            step: Step(step),
            updates: step,
            state_hash: Digest::of(b"state"),
            spec: serde_json::json!({ "model": "toy" }),
            extra: serde_json::Value::Null,
            tensors: vec![TensorInfo { name: "w".into(), dtype: DType::F32, shape: vec![4] }],
        }
    }

    fn save(to: &Checkpoints, step: u64) -> PathBuf {
        let fill = |_: usize, out: &mut dyn Write| out.write_all(&[step as u8; 16]);
        to.save(&request(step), fill).expect("saved")
    }

    /// Saved, found, read back; a twin is the same folder.
    #[test]
    fn a_checkpoint_round_trips() {
        let dir = tempfile::tempdir().expect("a folder");
        let to = Checkpoints::create(dir.path()).expect("made");
        let path = save(&to, 3);
        assert_eq!(save(&to, 3), path);
        let (found, bad) = to.newest_good().expect("one");
        assert!(bad.is_empty());
        assert_eq!(found.manifest.step, Step(3));
        assert_eq!(found.state().expect("state").tensor("w").expect("w").bytes, [3; 16]);
    }

    /// One flipped byte, a cut file, a missing file, no manifest: the one before is found, and what
    /// is wrong is named.
    #[test]
    fn a_bad_checkpoint_is_named_and_passed_over() {
        type Fault = fn(&Path);
        let faults: [(Fault, &str); 4] = [
            (|p| flip(&p.join(STATE)), "damaged"),
            (|p| fs::write(p.join(STATE), b"short").expect("cut"), "has 5 bytes"),
            (|p| fs::remove_file(p.join(STATE)).expect("gone"), STATE),
            (|p| fs::remove_file(p.join(MANIFEST)).expect("gone"), MANIFEST),
        ];
        for (fault, want) in faults {
            let dir = tempfile::tempdir().expect("a folder");
            let to = Checkpoints::create(dir.path()).expect("made");
            save(&to, 1);
            fault(&save(&to, 2));
            let (found, bad) = to.newest_good().expect("the one before");
            assert_eq!(found.manifest.step, Step(1));
            assert!(bad.len() == 1 && bad[0].contains(want), "{bad:?} should say {want}");
            to.retain(1, 0).expect("retention");
            assert!(to.newest_good().is_ok(), "the last good one is never removed");
        }
    }

    fn flip(path: &Path) {
        let mut bytes = fs::read(path).expect("a file");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(path, bytes).expect("written");
    }

    /// A save that fails in the middle publishes nothing and leaves nothing behind.
    #[test]
    fn a_failed_save_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let to = Checkpoints::create(dir.path()).expect("made");
        save(&to, 1);
        let full = |_: usize, _: &mut dyn Write| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        let error = to.save(&request(2), full).expect_err("no room");
        assert!(error.to_string().contains("No space"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
        // A writer that was killed leaves its folder aside; the next one removes it.
        fs::create_dir(dir.path().join(".aside-1-step-0000000002")).expect("made");
        Checkpoints::create(dir.path()).expect("opened");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    }

    /// keep_last and keep_every.
    #[test]
    fn retention_keeps_what_it_should() {
        let dir = tempfile::tempdir().expect("a folder");
        let to = Checkpoints::create(dir.path()).expect("made");
        (1..=6).for_each(|step| drop(save(&to, step)));
        to.retain(2, 3).expect("retention");
        let steps: Vec<u64> = to
            .list()
            .expect("a list")
            .iter()
            .map(|p| Checkpoint::open(p, false).expect("good").manifest.step.0)
            .collect();
        assert_eq!(steps, [3, 5, 6]);
    }
}
