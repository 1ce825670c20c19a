//! `planaria plan`: what a configuration will need, before anything is allocated.

use crate::cost;
use crate::machine;
use crate::output::{self, Done, Usage};
use crate::plan;
use clap::Args;
use planaria_actors::device::DeviceSetup;
use planaria_actors::spec::RunSpec;
use planaria_base::Digest;
use planaria_base::units::{format_bytes, parse_bytes};
use planaria_config::plan::{DataPlan, ModelPlan, TokenizerPlan};
use planaria_config::planner::{Machine, Rates, recommend};
use planaria_config::{Configuration, Options, RunPlan};
use planaria_models::compute::Kit;
use planaria_models::families::ModelSpec;
use planaria_models::hf;
use planaria_models::tokenizers::Tokenizer;
use planaria_storage::tokens::TokenFile;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Predict memory, traffic and time of a configuration, for every ZeRO stage and offload choice.
#[derive(Args)]
#[command(
    after_help = "The fastest layout that fits is marked and broken down to the byte; each other says why not.\nDocumentation: docs/planner.md.\n\nExamples:\n  planaria plan config.json\n  planaria plan config.json --nodes 8 --memory 24GiB --bandwidth 1.25GB\n  planaria plan config.json --memory 8GiB --drive 200GiB"
)]
pub(crate) struct Plan {
    /// A DeepSpeed configuration with a `planaria` block
    file: PathBuf,
    /// Nodes, all alike; the configuration's unless given
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    nodes: Option<u64>,
    /// Memory of a node; what is free here unless given
    #[arg(long, value_parser = size)]
    memory: Option<u64>,
    /// Bytes a second that a node sends to the others
    #[arg(long, value_parser = size, default_value = "1GB")]
    bandwidth: u64,
    /// Room on a drive, to judge offload to it
    #[arg(long, value_parser = size)]
    drive: Option<u64>,
    /// Bytes a second that the drive reads or writes
    #[arg(long, value_parser = size, default_value = "1GB")]
    drive_bandwidth: u64,
    /// Arithmetic of a node in operations a second; measured here unless given
    #[arg(long)]
    flops: Option<f64>,
    /// Compute threads of a node
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4096))]
    threads: Option<u64>,
    /// Size of the vocabulary, where it is only known once the text was read
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    vocab: Option<u64>,
    /// Override any key (repeatable)
    #[arg(long = "set", value_name = "PATH.TO.KEY=VALUE")]
    overrides: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|&b| b > 0);
    bytes.ok_or_else(|| format!("{text} is not a size such as 24GiB, 512M or 4096"))
}

impl Plan {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let plan = self.read()?;
        let (model, length) = (self.model(&plan)?, plan.data.sequence_length);
        let digest = Digest::default();
        let spec = plan::run_spec(&plan, model, (digest, None))?;
        let mut setup = plan::setup(&plan)?;
        setup.threads = self.threads.map_or(setup.threads, |t| t as usize);
        let model = spec.model.build();
        let cost = cost::model_cost(&spec, &model, &setup);
        let work = cost::workload(&spec);
        let machine = self.machine(&plan, &spec, &setup);
        let found = recommend(&cost, &work, &machine);
        if self.json {
            output::json(&json!({
                "parameters": cost.params(),
                "leaves": work.leaves,
                "machine": machine,
                "recommendation": found,
            }));
            return Ok(Done::All);
        }
        let rates = &machine.rates;
        output::line(&format!(
            "{:.2} M parameters, {} leaves of {} x {length} tokens a step, {:?}",
            cost.params() as f64 / 1e6,
            work.leaves,
            spec.sequences,
            work.precision,
        ));
        output::line(&format!(
            "{} of {}, {} threads, {:.1} GFLOP/s, memory {}/s, wire {}/s\n",
            if machine.nodes == 1 {
                "one node".to_owned()
            } else {
                format!("{} nodes", machine.nodes)
            },
            format_bytes(machine.device_bytes),
            setup.threads,
            rates.flops_per_s / 1e9,
            format_bytes(rates.memory_bytes_per_s as u64),
            format_bytes(self.bandwidth),
        ));
        output::line(&found.to_text());
        Ok(Done::All)
    }

    /// The configuration; offload that it asks for is left out, since every offload is judged anyway.
    fn read(&self) -> anyhow::Result<RunPlan> {
        let bytes = std::fs::read(&self.file)
            .map_err(|e| Usage(format!("cannot read {}: {e}", self.file.display())))?;
        let mut overrides = self.overrides.clone();
        let mut read = self.read_with(&bytes, overrides.clone());
        let missing = read.report.diagnostics.iter().filter(|d| d.rule == "not-built");
        let offload = |d: &&planaria_config::Diagnostic| {
            d.path.starts_with("zero_optimization.offload_") && d.path.ends_with(".device")
        };
        let offloads: Vec<String> = missing.filter(offload).map(|d| d.path.clone()).collect();
        if !offloads.is_empty() {
            overrides.extend(offloads.iter().map(|path| format!("{path}=none")));
            read = self.read_with(&bytes, overrides);
        }
        if read.report.has_errors() || read.plan.is_none() {
            output::note(&read.report.to_text());
        }
        read.plan.ok_or_else(|| Usage("the configuration was not taken".to_owned()).into())
    }

    fn read_with(&self, bytes: &[u8], overrides: Vec<String>) -> Configuration {
        let file = self.file.display().to_string();
        let options = Options { file, overrides, nodes: self.nodes, ..Options::default() };
        planaria_config::read(bytes, &options)
    }

    fn model(&self, plan: &RunPlan) -> anyhow::Result<ModelSpec> {
        match &plan.model {
            ModelPlan::Fresh(shape) => {
                let known = self.vocab.or(shape.vocab).map(|v| v as usize);
                let vocab = match known {
                    Some(vocab) => vocab,
                    None => vocabulary(&plan.data)?,
                };
                plan::model_spec(shape, vocab)
            }
            ModelPlan::InitFrom { folder } => {
                let path = Path::new(folder).join("config.json");
                let text = std::fs::read(&path)
                    .map_err(|e| Usage(format!("cannot read {}: {e}", path.display())))?;
                Ok(hf::read_config(&text)?)
            }
        }
    }

    fn machine(&self, plan: &RunPlan, spec: &RunSpec, setup: &DeviceSetup) -> Machine {
        let kit = Kit::new(setup.threads, setup.isa);
        let measured = || cost::flops_per_s(&kit, spec);
        let memory_bytes_per_s = machine::memory_bytes_per_s(&kit);
        let rates = Rates {
            flops_per_s: self.flops.filter(|&f| f > 0.0).unwrap_or_else(measured),
            memory_bytes_per_s,
            wire_bytes_per_s: self.bandwidth as f64,
            host_link_bytes_per_s: memory_bytes_per_s,
            disk_bytes_per_s: self.drive_bandwidth as f64,
        };
        let free = plan.compute.memory.unwrap_or(u64::MAX).min(machine::available_bytes());
        Machine {
            nodes: self.nodes.unwrap_or(plan.batch.nodes),
            device_bytes: self.memory.unwrap_or(free),
            host_bytes: None,
            disk_bytes: self.drive,
            rates,
        }
    }
}

/// Ids of the tokenizer that the data names.
fn vocabulary(data: &DataPlan) -> anyhow::Result<usize> {
    if let Some(path) = data.tokens.first() {
        return Ok(TokenFile::open(Path::new(path))?.vocab as usize);
    }
    match &data.tokenizer {
        TokenizerPlan::Byte => Ok(256),
        TokenizerPlan::Gpt2 => Ok(50_257),
        TokenizerPlan::Cl100k => Ok(100_277),
        TokenizerPlan::O200k => Ok(200_019),
        TokenizerPlan::File(path) => Ok(Tokenizer::from_file(Path::new(path))?.vocab()),
        TokenizerPlan::Char | TokenizerPlan::FromModel | TokenizerPlan::None => Err(Usage(
            "the vocabulary is known once the text was read: give --vocab, or planaria.model.vocab"
                .to_owned(),
        )
        .into()),
    }
}
