//! `planaria config`: check, explain and describe configurations.

use crate::output::{self, Done, Usage};
use clap::{Args, Subcommand};
use planaria_config::{Configuration, Need, Options, explain, json_schema};
use std::path::PathBuf;

/// Check or explain a configuration, or print the JSON schema for editors.
#[derive(Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Say everything that is wrong with a file, all at once
    Check(File),
    /// Show every value and where it came from
    Explain(File),
    /// Print the JSON schema
    Schema {
        /// The schema is JSON anyway
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct File {
    /// The configuration
    file: PathBuf,
    /// Override any key (repeatable)
    #[arg(long = "set", value_name = "PATH.TO.KEY=VALUE")]
    overrides: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl File {
    fn read(&self) -> anyhow::Result<Configuration> {
        let bytes = std::fs::read(&self.file)
            .map_err(|e| Usage(format!("cannot read {}: {e}", self.file.display())))?;
        let file = self.file.display().to_string();
        let (overrides, need) = (self.overrides.clone(), Need::Check);
        let options = Options { file, overrides, need, ..Options::default() };
        Ok(planaria_config::read(&bytes, &options))
    }
}

impl Config {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        match self.what {
            What::Schema { json: true } => output::json(&json_schema()),
            What::Schema { json: false } => {
                output::line(&serde_json::to_string_pretty(&json_schema())?);
            }
            What::Check(file) => check(&file)?,
            What::Explain(file) => {
                let read = file.read()?;
                if read.report.has_errors() {
                    output::note(&read.report.to_text());
                    return Err(Usage("the configuration has errors".into()).into());
                }
                if file.json {
                    output::json(&explain::to_json(&read));
                } else {
                    output::line(&explain::to_text(&read, false));
                }
            }
        }
        Ok(Done::All)
    }
}

fn check(file: &File) -> anyhow::Result<()> {
    let read = file.read()?;
    if file.json {
        output::json(&read.report.to_json());
    } else {
        output::note(&read.report.to_text());
    }
    if read.report.has_errors() {
        return Err(Usage("the configuration has errors".into()).into());
    }
    if !file.json {
        output::line("the configuration is good");
    }
    Ok(())
}
