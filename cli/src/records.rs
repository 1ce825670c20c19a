//! Records of a run: metrics as JSON lines, and TensorBoard event files.
//!
//! `metrics-<start>-<process>.jsonl`, one object a line: `step`, `loss` (nats), `learning_rate`,
//! `gradient_norm` (before clipping), `tokens` (so far), `tokens_per_s`, `skipped`; at evaluations
//! `step`, `validation_loss`.

#![allow(clippy::disallowed_methods, reason = "records carry wall time")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where records go; either file may be absent.
pub(crate) struct Recorder {
    metrics: Option<File>,
    events: Option<EventFile>,
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl Recorder {
    /// Records into `dir`, and TensorBoard's into `tensorboard`.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub(crate) fn create(dir: Option<&Path>, tensorboard: Option<&Path>) -> io::Result<Recorder> {
        let name = format!("{}-{}", now() as u64, std::process::id());
        let metrics = dir.map(|dir| {
            fs::create_dir_all(dir)?;
            let path = dir.join(format!("metrics-{name}.jsonl"));
            OpenOptions::new().create(true).append(true).open(path)
        });
        let events = tensorboard.map(|dir| EventFile::create(dir, &name));
        Ok(Recorder { metrics: metrics.transpose()?, events: events.transpose()? })
    }

    /// One line of numbers at a step.
    ///
    /// # Errors
    /// If the disk refuses.
    pub(crate) fn record(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        if let Some(file) = &mut self.metrics {
            let mut object = serde_json::Map::new();
            object.insert("step".to_owned(), step.into());
            object.extend(values.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())));
            // One write, so that a kill leaves whole lines.
            file.write_all(format!("{}\n", serde_json::Value::Object(object)).as_bytes())?;
        }
        if let Some(events) = &mut self.events {
            for (tag, value) in values {
                events.scalar(step, tag, *value as f32)?;
            }
        }
        Ok(())
    }
}

/// A TensorBoard event file: framed records of a small protocol-buffer message.
struct EventFile(File);

impl EventFile {
    fn create(dir: &Path, name: &str) -> io::Result<EventFile> {
        fs::create_dir_all(dir)?;
        let mut file = EventFile(File::create(dir.join(format!("events.out.tfevents.{name}")))?);
        let mut version = event_head(0);
        field_bytes(&mut version, 3, b"brain.Event:2");
        file.frame(&version)?;
        Ok(file)
    }

    fn scalar(&mut self, step: u64, tag: &str, value: f32) -> io::Result<()> {
        self.frame(&scalar_event(step, tag, value))
    }

    /// Length, its checksum, payload, its checksum.
    fn frame(&mut self, payload: &[u8]) -> io::Result<()> {
        let length = (payload.len() as u64).to_le_bytes();
        let mut frame = length.to_vec();
        frame.extend(masked_crc32c(&length).to_le_bytes());
        frame.extend(payload);
        frame.extend(masked_crc32c(payload).to_le_bytes());
        self.0.write_all(&frame)
    }
}

fn event_head(step: u64) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(now().to_le_bytes());
    out.push(2 << 3);
    varint(&mut out, step);
    out
}

/// Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }.
fn scalar_event(step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut inner = Vec::new();
    field_bytes(&mut inner, 1, tag.as_bytes());
    inner.push(2 << 3 | 5);
    inner.extend(value.to_le_bytes());
    let mut summary = Vec::new();
    field_bytes(&mut summary, 1, &inner);
    let mut out = event_head(step);
    field_bytes(&mut out, 5, &summary);
    out
}

fn field_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// CRC-32C (Castagnoli), bit by bit: records are short.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, &b| (0..8).fold(crc ^ u32::from(b), step))
}

fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32C (RFC 3720).
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    /// Frames can be walked, their checksums hold, and the scalar is in the payload.
    #[test]
    fn event_files_can_be_read_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut recorder = Recorder::create(Some(dir.path()), Some(dir.path())).expect("made");
        recorder.record(300, &[("loss", 1.5)]).expect("recorded");
        let entries = fs::read_dir(dir.path()).expect("a folder").map(|e| e.expect("entry").path());
        let (events, metrics): (Vec<_>, Vec<_>) =
            entries.partition(|p| p.to_string_lossy().contains("tfevents"));
        let bytes = fs::read(&events[0]).expect("a file");
        let (mut at, mut payloads) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8")) as usize;
            let crc = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("4"));
            assert_eq!(crc, masked_crc32c(&bytes[at..at + 8]));
            let payload = &bytes[at + 12..at + 12 + length];
            let end = at + 12 + length;
            let crc = u32::from_le_bytes(bytes[end..end + 4].try_into().expect("4"));
            assert_eq!(crc, masked_crc32c(payload));
            payloads.push(payload.to_vec());
            at = end + 4;
        }
        assert_eq!(payloads.len(), 2);
        assert!(payloads[1].ends_with(&1.5f32.to_le_bytes()));
        assert_eq!(&payloads[1][9..12], [2 << 3, 0xac, 0x02], "step 300 as a varint");
        let line = fs::read_to_string(&metrics[0]).expect("a file");
        assert_eq!(line, "{\"step\":300,\"loss\":1.5}\n");
    }
}
