//! `ff server`: runs the server until it is told to stop.

use std::path::PathBuf;
use std::process::ExitCode;

use ff_core::Code;
use ff_server::{Config, ConfigError, LogFormat, Server, Settings};
use tracing_subscriber::EnvFilter;

use crate::output::{Format, Output, When};
use crate::stop::Stop;

/// The arguments of `ff server`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ff server                                            on ./flowfabric.db, at 127.0.0.1:7171
  ff server --store postgres://localhost/flowfabric
  ff server --store valkey://127.0.0.1:6379 --listen 0.0.0.0:7171 --api-token-file token
  ff server --print-config                             what would be used, without secrets")]
pub(crate) struct Arguments {
    /// TOML file with the same keys as the flags; flags and variables are stronger.
    #[arg(long, env = "FF_CONFIG")]
    config: Option<PathBuf>,
    /// Print the configuration that would be used, without secrets, and end.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let print = arguments.print_config;
    let config = match configure(arguments) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("ff server: {error}");
            return ExitCode::from(ff_core::Class::Invalid.exit_code());
        }
    };
    if print {
        print!("{}", config.redacted());
        return ExitCode::SUCCESS;
    }
    if let Err(error) = start_logs(&config) {
        eprintln!("ff server: log_level: {error}");
        return ExitCode::from(ff_core::Class::Invalid.exit_code());
    }
    match super::runtime_of(config.threads) {
        Ok(runtime) => runtime.block_on(serve(config)),
        Err(failure) => {
            Output::new(Format::Table, When::Never).failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

fn configure(arguments: Arguments) -> Result<Config, ConfigError> {
    let unknown = Settings::check_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))?;
    if !unknown.is_empty() {
        eprintln!("ff server: these variables are no settings and mean nothing: {}", unknown.join(", "));
    }
    let file = arguments.config.as_deref().map(Settings::from_file).transpose()?;
    Config::resolve(arguments.settings, file.unwrap_or_default())
}

fn start_logs(config: &Config) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::try_new(&config.log_level)?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}

async fn serve(config: Config) -> ExitCode {
    let mut stop = match Stop::listen() {
        Ok(stop) => stop,
        Err(failure) => {
            Output::new(Format::Table, When::Never).failure(&failure);
            return ExitCode::from(failure.exit_code);
        }
    };
    match Server::start(config).await {
        Ok(server) => {
            let told = async {
                let how = stop.requested().await;
                tracing::info!("{how}");
            };
            server.run(told).await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            // The error says what is wrong with the setting; there is no field of a request to name.
            match error.code {
                Code::Invalid => tracing::error!(%error, "the server cannot start"),
                code => tracing::error!(%error, advice = code.advice(), "the server cannot start"),
            }
            ExitCode::from(error.code.class().exit_code())
        }
    }
}
