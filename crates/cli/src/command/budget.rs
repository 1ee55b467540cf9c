//! `ff budget`: what may be spent, and what is.

use std::collections::BTreeMap;

use ff_core::budget::{BudgetTemplate, CalendarUnit, CalendarWindow, Enforcement, HardAction, SoftAction};
use flowfabric::op::{
    CreateBudget, DeleteBudget, GetBudgetTree, ListBudgets, ListReservations, ReportBudgetUsage, create_budget,
    delete_budget, get_budget_tree, list_budgets, list_reservations, report_budget_usage, update_budget,
};
use flowfabric::{BudgetAnswer, BudgetStatus, Limits, ReportUsageResult};

use crate::command::pages;
use crate::failure::{Failure, Result};
use crate::input::{self, one_of};
use crate::output::{Cell, Colour, Style, Table};
use crate::session::Session;
use crate::span;

/// The arguments of `ff budget`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff budget create team-a --hard tokens=1000000 --soft tokens=800000 --reset 1d
  ff budget get team-a
  ff budget limits team-a --hard tokens=2000000")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a budget; the same definition again is the same budget
    #[command(after_help = "\
Examples:
  ff budget create team-a --hard tokens=1000000 --soft tokens=800000 --reset 1d
  ff budget create trial --hard cents=500 --on-hard fail
  ff budget create hourly --hard tokens=50000 --rolling 1h
  ff budget create acme --hard cents=90000 --per tag:customer --each-hard cents=500 --each-reset 1d
  ff budget create watched --hard tokens=1000 --enforcement observe")]
    Create(Box<Create>),
    /// List budgets
    #[command(
        after_help = "Examples:\n  ff budget ls\n  ff budget ls -o json | jq -r '.items[] | select(.exhausted != []) | .name'"
    )]
    Ls,
    /// Show a budget
    #[command(after_help = "Examples:\n  ff budget get team-a\n  ff budget get team-a -o json | jq .usage")]
    Get {
        /// The budget
        name: String,
    },
    /// Show a budget and everything that stands under it
    #[command(after_help = "Examples:\n  ff budget tree team-a")]
    Tree {
        /// The budget
        name: String,
    },
    /// List what is held in a budget, before it is spent
    #[command(
        after_help = "Examples:\n  ff budget reservations team-a\n  ff budget reservations team-a -o json | jq '.items[] | .execution_id'"
    )]
    Reservations {
        /// The budget
        name: String,
    },
    /// Answer a budget that asks: let more be used until its next reset
    #[command(after_help = "Examples:\n  ff budget grant team-a tokens=50000")]
    Grant {
        /// The budget
        name: String,
        /// The amounts that may be used on top of the hard limits
        #[arg(value_name = "DIMENSION=AMOUNT", value_parser = input::amount, required = true)]
        amounts: Vec<(String, i64)>,
    },
    /// Answer a budget that asks: no more is used until its next reset
    #[command(after_help = "Examples:\n  ff budget decline team-a")]
    Decline {
        /// The budget
        name: String,
    },
    /// Change limits; a raised limit releases what was blocked
    #[command(after_help = "Examples:\n  ff budget limits team-a --hard tokens=2000000 --soft tokens=1500000")]
    Limits {
        /// The budget
        name: String,
        #[command(flatten)]
        limits: LimitArguments,
    },
    /// Change how a budget acts; what is not named stays
    #[command(after_help = "\
Examples:
  ff budget update team-a --on-hard fail
  ff budget update team-a --enforcement observe --reset 12h")]
    Update(Box<Update>),
    /// Delete a budget
    #[command(after_help = "\
Examples:
  ff budget rm team-a
  ff budget rm team-a --force           also while executions are charged to it: they wait for a new one")]
    Rm(Removal),
    /// Charge a budget, as an operator
    #[command(after_help = "Examples:\n  ff budget report team-a tokens=1200 cents=3 --dedup-key invoice-17")]
    Report {
        /// The budget
        name: String,
        /// The amounts that were spent
        #[arg(value_name = "DIMENSION=AMOUNT", value_parser = input::amount, required = true)]
        usage: Vec<(String, i64)>,
        /// The same key counts once
        #[arg(long, value_name = "KEY")]
        dedup_key: Option<String>,
    },
    /// Set usage back to nothing and release what was blocked
    #[command(after_help = "Examples:\n  ff budget reset team-a")]
    Reset {
        /// The budget
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, unique in the namespace
    name: String,
    #[command(flatten)]
    limits: LimitArguments,
    /// The thing it is for, such as team=a
    #[arg(long, value_name = "TYPE=ID", value_parser = input::pair)]
    scope: Option<(String, String)>,
    /// Whether limits bind
    #[arg(long, value_parser = one_of!(Enforcement))]
    enforcement: Option<Enforcement>,
    /// What happens at a hard limit
    #[arg(long, value_parser = one_of!(HardAction))]
    on_hard: Option<HardAction>,
    /// What happens past a soft limit
    #[arg(long, value_parser = one_of!(SoftAction))]
    on_soft: Option<SoftAction>,
    /// Usage returns to nothing this often
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    reset: Option<i64>,
    /// Usage returns to nothing with each day or month of the calendar
    #[arg(long, value_name = "UNIT", value_parser = one_of!(CalendarUnit), conflicts_with = "reset")]
    calendar: Option<CalendarUnit>,
    /// The time zone whose midnight counts [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "calendar")]
    time_zone: Option<String>,
    /// Usage counts for this long after it was spent, and leaves bit by bit
    #[arg(long, value_name = "SPAN", value_parser = span::parse, conflicts_with_all = ["reset", "calendar"])]
    rolling: Option<i64>,
    /// A budget of its own for each value of a tag, made by its first use
    #[arg(long, value_name = "tag:NAME", requires = "each_hard")]
    per: Option<String>,
    #[command(flatten)]
    each: EachArguments,
}

#[derive(Debug, clap::Args)]
struct Update {
    /// The budget
    name: String,
    #[command(flatten)]
    limits: LimitArguments,
    /// Whether limits bind
    #[arg(long, value_parser = one_of!(Enforcement))]
    enforcement: Option<Enforcement>,
    /// What happens at a hard limit
    #[arg(long, value_parser = one_of!(HardAction))]
    on_hard: Option<HardAction>,
    /// What happens past a soft limit
    #[arg(long, value_parser = one_of!(SoftAction))]
    on_soft: Option<SoftAction>,
    /// Usage returns to nothing this often, from now on; 0s is never
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    reset: Option<i64>,
    /// Usage returns to nothing with each day or month of the calendar
    #[arg(long, value_name = "UNIT", value_parser = one_of!(CalendarUnit), conflicts_with = "reset")]
    calendar: Option<CalendarUnit>,
    /// The time zone whose midnight counts [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "calendar")]
    time_zone: Option<String>,
    /// Usage counts for this long after it was spent, and leaves bit by bit
    #[arg(long, value_name = "SPAN", value_parser = span::parse, conflicts_with_all = ["reset", "calendar"])]
    rolling: Option<i64>,
    #[command(flatten)]
    each: EachArguments,
}

/// The definition of the budgets that stand under one for the values of a tag.
#[derive(Debug, clap::Args)]
struct EachArguments {
    /// A hard limit of each of them; may be repeated
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = input::amount)]
    each_hard: Vec<(String, i64)>,
    /// A soft limit of each of them; may be repeated
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = input::amount)]
    each_soft: Vec<(String, i64)>,
    /// What happens at a hard limit of one of them
    #[arg(long, value_name = "ACTION", value_parser = one_of!(HardAction))]
    each_on_hard: Option<HardAction>,
    /// The usage of each of them returns to nothing this often
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    each_reset: Option<i64>,
    /// The usage of each of them counts for this long
    #[arg(long, value_name = "SPAN", value_parser = span::parse, conflicts_with = "each_reset")]
    each_rolling: Option<i64>,
}

impl EachArguments {
    fn is_empty(&self) -> bool {
        let limits = self.each_hard.is_empty() && self.each_soft.is_empty();
        limits && self.each_on_hard.is_none() && self.each_reset.is_none() && self.each_rolling.is_none()
    }

    /// Puts what was given in the place of what there is.
    fn upon(self, mut template: BudgetTemplate) -> BudgetTemplate {
        for (dimension, amount) in self.each_hard {
            template.dimensions.entry(dimension).or_default().hard = amount;
        }
        for (dimension, amount) in self.each_soft {
            template.dimensions.entry(dimension).or_default().soft = amount;
        }
        template.on_hard = self.each_on_hard.unwrap_or(template.on_hard);
        if self.each_reset.is_some() || self.each_rolling.is_some() {
            template.reset_interval_ms = self.each_reset.unwrap_or(0);
            template.rolling_ms = self.each_rolling.unwrap_or(0);
            template.calendar = None;
        }
        template
    }
}

/// The name of the thing to delete, and whether also while it is used.
#[derive(Debug, clap::Args)]
pub(crate) struct Removal {
    /// Its name
    pub(crate) name: String,
    /// Also while executions that have not ended use it
    #[arg(long)]
    pub(crate) force: bool,
}

impl Removal {
    /// The call.
    pub(crate) fn args(&self) -> delete_budget::Args {
        delete_budget::Args { name: self.name.clone(), namespace: None, force: self.force }
    }
}

#[derive(Debug, clap::Args)]
struct LimitArguments {
    /// A limit that usage never passes; may be repeated
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = input::amount)]
    hard: Vec<(String, i64)>,
    /// A limit that is worth a warning; may be repeated
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = input::amount)]
    soft: Vec<(String, i64)>,
}

impl LimitArguments {
    fn is_empty(&self) -> bool {
        self.hard.is_empty() && self.soft.is_empty()
    }

    /// Adds the limits that were given to those there are.
    fn upon(self, mut limits: BTreeMap<String, Limits>) -> Result<BTreeMap<String, Limits>> {
        if self.is_empty() {
            return Err(
                Failure::usage("no limit was given").advice("Give one with --hard or --soft: --hard tokens=1000.")
            );
        }
        for (dimension, amount) in self.hard {
            limits.entry(dimension).or_default().hard = amount;
        }
        for (dimension, amount) in self.soft {
            limits.entry(dimension).or_default().soft = amount;
        }
        Ok(limits)
    }
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(budget) => create(&session, *budget).await,
        Verb::Ls => ls(&session).await,
        Verb::Get { name } => {
            let status = session.client.budget(&name).await?;
            session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
        }
        Verb::Tree { name } => tree(&session, &name).await,
        Verb::Reservations { name } => reservations(&session, &name).await,
        Verb::Grant { name, amounts } => decide(&session, &name, BudgetAnswer::Grant, &amounts).await,
        Verb::Decline { name } => decide(&session, &name, BudgetAnswer::No, &[]).await,
        Verb::Limits { name, limits } => {
            // A limit that is not named stays, also within a dimension.
            let known = session.client.budget(&name).await?.definition.dimensions;
            let status = session.client.set_budget_limits(&name, limits.upon(known)?).await?;
            session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
        }
        Verb::Update(update) => self::update(&session, *update).await,
        Verb::Rm(removal) => {
            let answer = session.client.call::<DeleteBudget>(removal.args()).await?;
            session.out.answer(&answer, |_| format!("{} is deleted", removal.name))
        }
        Verb::Report { name, usage, dedup_key } => report(&session, name, usage, dedup_key).await,
        Verb::Reset { name } => {
            let answer = session.client.reset_budget(&name).await?;
            session.out.answer(&answer, |_| {
                let next = answer.next_reset_at.map(|at| format!(", and again at {}", span::instant(at)));
                format!("{name} was reset at {}{}", span::instant(answer.reset_at), next.unwrap_or_default())
            })
        }
    }
}

async fn create(session: &Session, budget: Create) -> Result<()> {
    let (scope_type, scope_id) = budget.scope.unzip();
    let args = create_budget::Args {
        name: budget.name.clone(),
        namespace: None,
        scope_type,
        scope_id,
        dimensions: budget.limits.upon(BTreeMap::new())?,
        enforcement: budget.enforcement,
        on_hard: budget.on_hard,
        on_soft: budget.on_soft,
        reset_interval_ms: budget.reset,
        calendar: calendar(budget.calendar, budget.time_zone),
        rolling_ms: budget.rolling,
        template: budget.per.as_ref().map(|_| budget.each.upon(BudgetTemplate::default())),
        per: budget.per,
    };
    let answer = session.client.call::<CreateBudget>(args).await?;
    session.out.answer(&answer, |_| match &answer {
        create_budget::Outcome::Created => format!("{} is created", budget.name),
        create_budget::Outcome::AlreadyExists => format!("{} was there before, just so", budget.name),
        create_budget::Outcome::Unknown(variant) => variant.json().to_owned(),
    })
}

fn calendar(unit: Option<CalendarUnit>, time_zone: Option<String>) -> Option<CalendarWindow> {
    let default = CalendarWindow::default();
    unit.map(|unit| CalendarWindow { unit, time_zone: time_zone.unwrap_or(default.time_zone), ..default })
}

async fn update(session: &Session, update: Update) -> Result<()> {
    let mut args = update_budget::Args {
        name: update.name.clone(),
        enforcement: update.enforcement,
        on_hard: update.on_hard,
        on_soft: update.on_soft,
        reset_interval_ms: update.reset,
        rolling_ms: update.rolling,
        ..Default::default()
    };
    if update.calendar.is_some() || update.time_zone.is_some() {
        // Neither is the unit nor the time zone that is not named.
        let known = session.client.budget(&update.name).await?.definition.calendar;
        let unit = update.calendar.or(known.as_ref().map(|window| window.unit));
        args.calendar = calendar(unit, update.time_zone.or(known.map(|window| window.time_zone)));
    }
    if !update.limits.is_empty() {
        // A limit that is not named stays, also within a dimension.
        let known = session.client.budget(&update.name).await?.definition.dimensions;
        args.dimensions = update.limits.upon(known)?;
    }
    if !update.each.is_empty() {
        let known = session.client.budget(&update.name).await?.definition.template;
        args.template = Some(update.each.upon(known.unwrap_or_default()));
    }
    let status = session.client.update_budget(args).await?;
    session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
}

async fn ls(session: &Session) -> Result<()> {
    let items = pages(async |cursor| {
        let page = session.client.call::<ListBudgets>(list_budgets::Args { cursor, ..Default::default() }).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = list_budgets::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| text(&answer.items, style))
}

async fn tree(session: &Session, name: &str) -> Result<()> {
    let items = pages(async |cursor| {
        let args = get_budget_tree::Args { name: name.to_owned(), namespace: None, limit: None, cursor };
        let page = session.client.call::<GetBudgetTree>(args).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = get_budget_tree::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| text(&answer.items, style))
}

async fn decide(session: &Session, name: &str, answer: BudgetAnswer, amounts: &[(String, i64)]) -> Result<()> {
    let amounts = amounts.iter().map(|(dimension, amount)| (dimension.as_str(), *amount));
    let status = session.client.decide_budget(name, answer, amounts).await?;
    session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
}

async fn reservations(session: &Session, name: &str) -> Result<()> {
    let items = pages(async |cursor| {
        let args = list_reservations::Args { name: name.to_owned(), namespace: None, limit: None, cursor };
        let page = session.client.call::<ListReservations>(args).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = list_reservations::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| {
        let mut table = Table::new(["EXECUTION", "KEY", "HELD", "SINCE", "COUNTS AS SPENT"]);
        for held in &answer.items {
            let amounts: Vec<String> = held.amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
            table.row([
                Cell::of(held.execution_id),
                Cell::of(&held.key),
                Cell::of(amounts.join(" ")),
                Cell::at(held.reserved_at),
                Cell::at(held.expires_at),
            ]);
        }
        table.text(style, "Nothing is held.")
    })
}

async fn report(session: &Session, name: String, usage: Vec<(String, i64)>, dedup_key: Option<String>) -> Result<()> {
    let args = report_budget_usage::Args {
        name: name.clone(),
        namespace: None,
        usage: usage.into_iter().collect(),
        dedup_key,
        execution_id: None,
        fence: None,
    };
    let answer = session.client.call::<ReportBudgetUsage>(args).await?;
    session.out.answer(&answer, |style| match &answer {
        ReportUsageResult::Ok => format!("{name}: counted"),
        ReportUsageResult::AlreadyApplied => format!("{name}: counted before, not again"),
        ReportUsageResult::SoftBreach { dimension, current, limit } => style.paint(
            Colour::Yellow,
            &format!("{name}: counted, {dimension} is at {current} past its soft limit {limit}"),
        ),
        ReportUsageResult::HardBreach { dimension, current, limit } => {
            style.paint(Colour::Red, &format!("{name}: {dimension} is at {current} and must not pass {limit}"))
        }
        ReportUsageResult::Unknown(variant) => variant.json().to_owned(),
    })
}

fn text(budgets: &[BudgetStatus], style: Style) -> String {
    let mut table =
        Table::new(["BUDGET", "DIMENSION", "USED", "HELD", "LEFT", "SOFT", "HARD", "STATE", "BREACHES", "RESETS"]);
    let limit = |amount: i64| Cell::maybe((amount > 0).then_some(amount));
    for budget in budgets {
        for (dimension, limits) in &budget.definition.dimensions {
            let used = budget.usage.get(dimension).copied().unwrap_or(0);
            let asks = budget.question.as_ref().is_some_and(|question| question.dimension == *dimension);
            let state = if asks {
                Cell::coloured("asks", Colour::Yellow)
            } else if budget.exhausted.contains(dimension) {
                Cell::coloured("exhausted", Colour::Red)
            } else if limits.soft > 0 && used > limits.soft {
                Cell::coloured("warning", Colour::Yellow)
            } else {
                Cell::coloured("ok", Colour::Green)
            };
            table.row([
                Cell::of(&budget.name),
                Cell::of(dimension),
                Cell::of(used),
                Cell::of(budget.standing.get(dimension).map_or(0, |standing| standing.reserved)),
                Cell::maybe(budget.standing.get(dimension).and_then(|standing| standing.left)),
                limit(limits.soft),
                limit(limits.hard),
                state,
                Cell::of(budget.breach_count),
                match budget.definition.rolling_ms {
                    0 => Cell::maybe_at(budget.next_reset_at),
                    span => Cell::of(format!("rolls {}", span::show(span))),
                },
            ]);
        }
    }
    table.text(style, "There are no budgets.")
}
