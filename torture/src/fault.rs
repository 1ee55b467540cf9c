//! The names of what can go wrong.

macro_rules! faults {
    ($( $variant:ident $name:literal $what:literal, )*) => {
        /// One thing that goes wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $( #[doc = $what] $variant, )* }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Fault] = &[ $( Fault::$variant, )* ];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $( Fault::$variant => $name, )* }
            }

            /// What happens.
            pub const fn what(self) -> &'static str {
                match self { $( Fault::$variant => $what, )* }
            }
        }
    };
}

faults! {
    ServerKill "server-kill" "A server is killed and started again.",
    ServerStop "server-stop" "A server hangs and goes on.",
    Rolling "rolling" "Every server in turn is told to end and started again.",
    Upgrade "upgrade" "Every server in turn is told to end and started again as the other of two builds; both serve meanwhile.",
    WorkerKill "worker-kill" "A worker process is killed and started again.",
    WorkerStop "worker-stop" "A worker process hangs for longer than its leases last, and goes on with what it had.",
    Clock "clock" "The clock of a server is set an hour forward, then an hour back, then right.",
    ClientsCut "clients-cut" "All connections of clients are closed, and new ones too, for a while.",
    ClientsMute "clients-mute" "Requests of clients to one server stay in the network for a while, and then arrive.",
    ClientsDeaf "clients-deaf" "Answers of one server to clients stay in the network for a while, and then arrive.",
    ClientsHole "clients-hole" "Nothing passes between clients and servers, and connections stay open.",
    ClientsDelay "clients-delay" "Everything between clients and servers takes longer.",
    ClientsReset "clients-reset" "Requests arrive; the connection is closed instead of their answers.",
    StoreCut "store-cut" "All connections of servers to the store are closed, and new ones too, for a while.",
    StoreMute "store-mute" "Requests of servers stay in the network, and then arrive at the store.",
    StoreDeaf "store-deaf" "Answers of the store stay in the network, and then arrive.",
    StoreHole "store-hole" "Nothing passes between servers and the store, and connections stay open.",
    StoreDelay "store-delay" "Everything between servers and the store takes longer.",
    StoreReset "store-reset" "Requests arrive at the store; the connection is closed instead of their answers.",
    StoreKill "store-kill" "The store is killed and started again on its files.",
    StoreGone "store-gone" "The store is killed, and gone for longer than anything waits for it.",
    StoreStop "store-stop" "The store hangs and goes on.",
    StoreFull "store-full" "The store has no room left, and then it has again.",
    FunctionFlush "function-flush" "The functions are removed from Valkey.",
    Failover "failover" "The replica hears nothing for a while, then the primary is gone for good and the replica is promoted.",
    PrimaryKill "primary-kill" "A primary of the cluster is killed; its replica takes over, and it comes back as one.",
    SlotMove "slot-move" "Slots move to a server that has just joined the cluster, and stay there.",
    Terminate "terminate" "PostgreSQL ends all connections of servers.",
    LockTable "lock-table" "A foreign transaction locks the table of documents for a while.",
}

impl Fault {
    /// The fault of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name).ok_or(format!("{name} is no fault"))
    }
}
