//! Writes a Hugging Face folder's weights, cut by size.

use super::write::{TensorInfo, write};
use crate::atomic;
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

/// Writes `model.safetensors`, or shards of at most `shard_bytes` (one tensor at least) with
/// `model.safetensors.index.json`, written last. Tensors go in the order of their names;
/// `fill(i, out)` writes the bytes of tensor `i` of the list as it was given. Returns the bytes
/// written.
///
/// # Errors
/// If the disk refuses, a name stands twice, or `fill` writes another number of bytes than the
/// tensor has. The folder is not to be used then: no index names its shards.
pub fn write_sharded(
    dir: &Path,
    tensors: &[TensorInfo],
    shard_bytes: u64,
    mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    if let Some(two) = order.windows(2).find(|w| tensors[w[0]].name == tensors[w[1]].name) {
        return Err(io::Error::other(format!("tensor {} stands twice", tensors[two[0]].name)));
    }
    let shards = cut(tensors, &order, shard_bytes);
    let (mut weight_map, mut total) = (serde_json::Map::new(), 0);
    for (at, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", at + 1),
        };
        let infos: Vec<TensorInfo> = shard.iter().map(|&i| tensors[i].clone()).collect();
        total += write(&dir.join(&name), &infos, |i, out| fill(shard[i], out))?.1;
        weight_map.extend(infos.into_iter().map(|t| (t.name, json!(name))));
    }
    if shards.len() > 1 {
        let total_size: usize = tensors.iter().map(TensorInfo::bytes).sum();
        let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
        let text = serde_json::to_vec_pretty(&index)?;
        atomic::write_file(&dir.join("model.safetensors.index.json"), &text)?;
    }
    atomic::sync_dir(dir)?;
    Ok(total)
}

fn cut(tensors: &[TensorInfo], order: &[usize], shard_bytes: u64) -> Vec<Vec<usize>> {
    let (mut shards, mut filled) = (vec![Vec::new()], 0);
    for &i in order {
        let bytes = tensors[i].bytes() as u64;
        let last = shards.len() - 1;
        if bytes > 0 && filled + bytes > shard_bytes && !shards[last].is_empty() {
            shards.push(vec![i]);
            filled = bytes;
        } else {
            shards[last].push(i);
            filled += bytes;
        }
    }
    shards
}
