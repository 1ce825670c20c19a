//! `planaria export`: a model as a Hugging Face folder.

use crate::folder::{self, ModelFolder};
use crate::output::{self, Done, Usage};
use anyhow::Context;
use clap::{Args, ValueEnum};
use planaria_base::DType;
use planaria_models::hf;
use planaria_models::lora;
use planaria_models::tokenizers::TokenizerSpec;
use planaria_storage::atomic::write_file;
use planaria_storage::safetensors::{self, TensorInfo};
use serde_json::json;
use std::path::PathBuf;

/// Write a model as a Hugging Face folder that transformers loads.
#[derive(Args)]
#[command(
    after_help = "Example:\n  planaria export runs/quickstart exported\n  python -c \"import transformers; transformers.AutoModelForCausalLM.from_pretrained('exported')\""
)]
pub(crate) struct Export {
    /// A checkpoint, a run's folder, a Hugging Face folder, or a GGUF file
    model: PathBuf,
    /// The folder to make
    out: PathBuf,
    /// Of a LoRA run: the whole model, adapters added; without it, the adapter in PEFT's layout
    #[arg(long)]
    merge: bool,
    /// How the weights are stored
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// End with one JSON object: path, tensors, bytes
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
    F16,
}

impl Export {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        if self.out.exists() {
            return Err(Usage(format!("{} is there already", self.out.display())).into());
        }
        let mut folder = folder::open(&self.model)?;
        if self.merge && folder.spec.lora.is_none() {
            return Err(Usage("--merge is for LoRA runs; this model has no adapters".into()).into());
        }
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        let adapter = folder.spec.lora.as_ref().filter(|_| !self.merge);
        let (tensors, bytes) = if let Some(lora) = adapter {
            let config = lora::peft_config(folder.spec.family, lora, None);
            let config = format!("{config:#}\n");
            write_file(&self.out.join("adapter_config.json"), config.as_bytes())?;
            let list = lora::peft_tensors(&folder.spec.build());
            self.weights("adapter_model.safetensors", &folder, &list)?
        } else {
            let weights = std::mem::take(&mut folder.weights);
            (folder.spec, folder.weights) = lora::merge(&folder.spec, weights);
            let model = folder.spec.build();
            let list = model.params.iter().map(|p| (p.name.clone(), p.id.index()));
            let written = self.weights("model.safetensors", &folder, &list.collect::<Vec<_>>())?;
            let config =
                hf::export(&folder.spec, &model, self.dtype(), folder.special_ids()).config;
            write_file(&self.out.join("config.json"), config.as_bytes())?;
            written
        };
        self.words(&folder)?;
        if self.json {
            let path = self.out.display().to_string();
            output::json(&json!({ "path": path, "tensors": tensors, "bytes": bytes }));
        } else {
            output::line(&format!("{}: {tensors} tensors, {bytes} bytes", self.out.display()));
        }
        Ok(Done::All)
    }

    fn dtype(&self) -> DType {
        match self.dtype {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::Bf16,
            Dtype::F16 => DType::F16,
        }
    }

    /// Writes parameters, by index, under their names; returns how many, and the file's bytes.
    fn weights(
        &self,
        file: &str,
        folder: &ModelFolder,
        list: &[(String, usize)],
    ) -> anyhow::Result<(usize, u64)> {
        let (model, dtype) = (folder.spec.build(), self.dtype());
        let info = |(name, index): &(String, usize)| TensorInfo {
            name: name.clone(),
            dtype,
            shape: model.params[*index].shape.clone(),
        };
        let tensors: Vec<TensorInfo> = list.iter().map(info).collect();
        let path = self.out.join(file);
        let mut unfit = Vec::new();
        let (_, bytes) = safetensors::write(&path, &tensors, |i, out| {
            let values = &folder.weights[list[i].1];
            let mut bytes = vec![0; values.len() * dtype.bytes()];
            match hf::encode(values, dtype, &mut bytes) {
                0 => {}
                count => unfit.push(format!("{}: {count}", tensors[i].name)),
            }
            out.write_all(&bytes)
        })
        .with_context(|| path.display().to_string())?;
        if !unfit.is_empty() {
            let _ = std::fs::remove_dir_all(&self.out);
            anyhow::bail!(
                "values too large for {dtype} (they would be infinite): {}; use --dtype bf16 or f32",
                unfit.join(", ")
            );
        }
        Ok((tensors.len(), bytes))
    }

    /// The tokenizer, and how the model chats.
    fn words(&self, folder: &ModelFolder) -> anyhow::Result<()> {
        let Some(TokenizerSpec::HuggingFace { json }) = folder.tokenizer.as_ref().map(|t| t.spec())
        else {
            return Ok(());
        };
        write_file(&self.out.join("tokenizer.json"), json.as_bytes())?;
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": folder.spec.max_length,
            "clean_up_tokenization_spaces": false,
        });
        if let Some(chat) = &folder.chat {
            config["chat_template"] = chat.template.clone().into();
            for (key, token) in [("bos_token", &chat.bos_token), ("eos_token", &chat.eos_token)] {
                if !token.is_empty() {
                    config[key] = token.clone().into();
                }
            }
        }
        write_file(&self.out.join("tokenizer_config.json"), format!("{config:#}\n").as_bytes())?;
        Ok(())
    }
}
