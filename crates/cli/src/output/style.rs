//! Colours, and which states have which.

use ff_core::{FlowState, LaneState, PublicState};

/// The colours there are; a terminal decides what they look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
    /// Less important than the rest.
    Dim,
}

impl Colour {
    const fn code(self) -> &'static str {
        match self {
            Colour::Red => "31",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Blue => "34",
            Colour::Magenta => "35",
            Colour::Cyan => "36",
            Colour::Dim => "2",
        }
    }
}

/// Whether text is painted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    colours: bool,
}

impl Style {
    pub(crate) fn new(colours: bool) -> Self {
        Self { colours }
    }

    pub(crate) fn has_colours(self) -> bool {
        self.colours
    }

    /// Paints text.
    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        if self.colours { format!("\x1b[{}m{text}\x1b[0m", colour.code()) } else { text.to_owned() }
    }

    /// Paints text that matters.
    pub(crate) fn bold(self, text: &str) -> String {
        if self.colours { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The colour of an execution's state.
pub(crate) fn public_state(state: PublicState) -> Colour {
    match state {
        PublicState::Completed => Colour::Green,
        PublicState::Failed | PublicState::Expired => Colour::Red,
        PublicState::Cancelled | PublicState::Skipped => Colour::Dim,
        PublicState::Active => Colour::Cyan,
        PublicState::Suspended => Colour::Magenta,
        PublicState::RateLimited | PublicState::Delayed => Colour::Yellow,
        PublicState::Waiting | PublicState::WaitingChildren | PublicState::Unknown(_) => Colour::Blue,
    }
}

/// The colour of a flow's state.
pub(crate) fn flow_state(state: FlowState) -> Colour {
    match state {
        FlowState::Open | FlowState::Unknown(_) => Colour::Blue,
        FlowState::Running => Colour::Cyan,
        FlowState::Blocked => Colour::Yellow,
        FlowState::Completed => Colour::Green,
        FlowState::Failed => Colour::Red,
        FlowState::Cancelled => Colour::Dim,
    }
}

/// The colour of a lane's state.
pub(crate) fn lane_state(state: LaneState) -> Colour {
    match state {
        LaneState::Active => Colour::Green,
        LaneState::Paused | LaneState::Draining | LaneState::Unknown(_) => Colour::Yellow,
        LaneState::Disabled => Colour::Red,
    }
}
