//! A checkpoint that several nodes write at once, each its own chunks, into one folder that all of
//! them reach.
//!
//! The file's layout follows from the run spec, so every writer makes the same header and writes its
//! elements at their places; writing the same elements twice writes the same bits. Whoever knows that
//! all are written publishes. The folder aside is named after run, step and command log, so writers
//! of different branches never meet.

use super::{
    CheckpointError, Checkpoints, FORMAT, FileEntry, MANIFEST, Manifest, STATE, SaveRequest,
    io_error,
};
use crate::atomic::ASIDE;
use crate::safetensors::{TensorInfo, file_header};
use planaria_base::{Digest, RunId, Step};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One node's hand on a checkpoint in the making.
#[derive(Debug)]
pub struct SharedSave {
    checkpoints: Checkpoints,
    aside: PathBuf,
    target: PathBuf,
    file: File,
    /// By tensor: its first byte in the file.
    starts: Vec<u64>,
    bytes: u64,
    /// Tells others that the folder is alive.
    _alive: File,
}

impl SharedSave {
    /// Opens the checkpoint of a step, or begins it; `branch` names the command log.
    ///
    /// # Errors
    /// If the disk is too small or refuses.
    pub fn open(
        checkpoints: &Checkpoints,
        (run, step, branch): (RunId, Step, &str),
        tensors: &[TensorInfo],
    ) -> Result<SharedSave, CheckpointError> {
        let run = run.to_string();
        let name = format!("step-{:010}-{}", step.0, &run[..8]);
        let aside = checkpoints.dir.join(format!("{ASIDE}shared-{branch}-{name}"));
        if !aside.is_dir() {
            checkpoints.check_space(tensors)?;
            fs::create_dir_all(&aside).map_err(io_error("make", &aside))?;
        }
        let alive = File::open(&aside).map_err(io_error("open", &aside))?;
        alive.try_lock_shared().map_err(|e| io_error("lock", &aside)(e.into()))?;
        let path = aside.join(STATE);
        let header = file_header(tensors);
        let mut starts = Vec::with_capacity(tensors.len());
        let mut at = header.len() as u64;
        for tensor in tensors {
            starts.push(at);
            at += (tensor.shape.iter().product::<usize>() * tensor.dtype.bytes()) as u64;
        }
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(io_error("make", &path))?;
        file.set_len(at).map_err(io_error("size", &path))?;
        file.write_all_at(&header, 0).map_err(io_error("write", &path))?;
        let (checkpoints, target) = (checkpoints.clone(), checkpoints.dir.join(name));
        Ok(SharedSave { checkpoints, aside, target, file, starts, bytes: at, _alive: alive })
    }

    /// Writes elements of an fp32 tensor from element `first` on, as they lie in memory: like every
    /// machine that we run on, the format is little-endian.
    ///
    /// # Errors
    /// If the disk refuses; the checkpoint must not be published then.
    pub fn write(&self, tensor: usize, first: u64, values: &[f32]) -> Result<(), CheckpointError> {
        let at = self.starts[tensor] + 4 * first;
        let bytes = bytemuck::cast_slice(values);
        self.file.write_all_at(bytes, at).map_err(io_error("write", &self.aside))
    }

    /// Everything is written: flushes, hashes, writes the manifest, gives the folder its name.
    ///
    /// # Errors
    /// As [`Checkpoints::save`]; nothing is published then.
    pub fn publish(&self, request: &SaveRequest) -> Result<PathBuf, CheckpointError> {
        let path = self.aside.join(STATE);
        self.file.sync_all().map_err(io_error("flush", &path))?;
        let mut hasher = blake3::Hasher::new();
        let read = File::open(&path).and_then(|f| hasher.update_reader(f).map(|_| ()));
        read.map_err(io_error("read", &path))?;
        let manifest = Manifest {
            format: FORMAT,
            run: request.run.to_string(),
            step: request.step,
            updates: request.updates,
            state_hash: request.state_hash,
            spec: request.spec.clone(),
            extra: request.extra.clone(),
            files: vec![FileEntry {
                name: STATE.to_owned(),
                bytes: self.bytes,
                blake3: Digest(*hasher.finalize().as_bytes()),
            }],
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other);
        let path = self.aside.join(MANIFEST);
        text.and_then(|text| write_synced(&path, &text)).map_err(io_error("write", &path))?;
        self.checkpoints.disk.sync_dir(&self.aside).map_err(io_error("flush", &self.aside))?;
        self.checkpoints.publish(&self.aside, &self.target, &request.state_hash)?;
        let _ = self.checkpoints.disk.remove_dir(&self.aside);
        Ok(self.target.clone())
    }
}

fn write_synced(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use planaria_base::DType;
    use planaria_base::tensor_source::TensorSource;
    use serde_json::json;

    /// Two writers with halves of two tensors make the checkpoint that one writer makes.
    #[test]
    fn two_writers_make_one_checkpoint() {
        let dir = tempfile::tempdir().expect("a folder");
        let all = Checkpoints::create(dir.path()).expect("a folder");
        let info =
            |name: &str, n| TensorInfo { name: name.into(), dtype: DType::F32, shape: vec![n] };
        let tensors = [info("w", 6), info("w.exp_avg", 6)];
        let at = (RunId([1; 16]), Step(3), "00");
        let (a, b) = (SharedSave::open(&all, at, &tensors), SharedSave::open(&all, at, &tensors));
        let (a, b) = (a.expect("opened"), b.expect("opened"));
        Checkpoints::create(dir.path()).expect("a living folder aside is left alone");
        for (writer, first) in [(&b, 3), (&a, 0)] {
            writer.write(0, first, &[first as f32; 3]).expect("written");
            writer.write(1, first, &[-1.0; 3]).expect("written");
        }
        let request = SaveRequest {
            run: at.0,
            step: at.1,
            updates: 3,
            state_hash: Digest::of(b"state"),
            spec: json!({}),
            extra: json!({}),
            tensors: tensors.to_vec(),
        };
        let path = a.publish(&request).expect("published");
        let (found, bad) = all.newest_good().expect("a checkpoint");
        assert!(bad.is_empty() && found.path == path);
        let state = Checkpoint::open(&path, true).expect("good").state().expect("a file");
        let want: Vec<u8> =
            [0f32, 0.0, 0.0, 3.0, 3.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(state.tensor("w").expect("w").bytes, want);
        let names = |d: &Path| fs::read_dir(d).expect("a folder").count();
        assert_eq!(names(dir.path()), 1, "nothing is left aside");
        a.publish(&request).expect_err("the folder aside is gone");
    }
}
