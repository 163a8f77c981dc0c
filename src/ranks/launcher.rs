//! The environment variables of launchers: the rank of this process, and where the ranks meet.

/// The default port, torchrun's.
const PORT: u16 = 29500;

/// The description of a process by its launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Launched {
    pub rank: usize,
    pub size: usize,
    /// The address of rank 0, if given.
    pub address: Option<String>,
    /// The name of this run, if all its processes are known to be on this machine.
    pub local_job: Option<String>,
}

/// The variables of a launcher: rank, size, number of ranks on this machine, name of the run.
const LAUNCHERS: &[[&str; 4]] = &[
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "FUTENSOR_JOB"],
    ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FUTENSOR_JOB"],
    ["SLURM_PROCID", "SLURM_NTASKS", "FUTENSOR_LOCAL_SIZE", "FUTENSOR_JOB"],
];

/// The description in the environment; `None` without a launcher.
///
/// # Errors
/// A variable of a pair is missing, or is not a number.
pub(crate) fn launched(get: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, String> {
    let number = |name: &str| match get(name) {
        None => Ok(None),
        Some(text) => match text.trim().parse::<usize>() {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(format!("{name} is \"{text}\", not a number")),
        },
    };
    let address = get("MASTER_ADDR").map(|host| {
        let own = number("FUTENSOR_PORT").ok().flatten();
        // torchrun's own store already uses its port.
        let beside = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|is| is == "True") as usize;
        let given = || number("MASTER_PORT").ok().flatten().unwrap_or(PORT as usize) + beside;
        let port = own.unwrap_or_else(given);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    });
    for [rank, size, local, job] in LAUNCHERS {
        let (rank, size) = match (number(rank)?, number(size)?) {
            (None, None) => continue,
            (Some(_), None) => return Err(format!("{rank} is set, and {size} is not")),
            (None, Some(_)) => return Err(format!("{size} is set, and {rank} is not")),
            (Some(rank), Some(size)) => (rank, size),
        };
        let is_local = number(local)? == Some(size);
        return Ok(Some(Launched {
            rank,
            size,
            address,
            local_job: get(job).filter(|_| is_local),
        }));
    }
    Ok(None)
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Option<Launched>, String> {
        launched(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn each_launcher_is_understood_and_none_is_alone() {
        assert_eq!(of(&[("PATH", "/bin")]), Ok(None));
        let torch =
            [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "1234")];
        let found = of(&torch).unwrap().unwrap();
        assert_eq!((found.rank, found.size, found.address.as_deref()), (1, 4, Some("node0:1234")));
        let agent = [&torch[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(of(&agent).unwrap().unwrap().address.as_deref(), Some("node0:1235"));
        let slurm = of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("MASTER_ADDR", "::1")]);
        assert_eq!(slurm.unwrap().unwrap().address.as_deref(), Some("[::1]:29500"));
        let pmi = of(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")]).unwrap().unwrap();
        assert_eq!((pmi.rank, pmi.size, pmi.local_job), (2, 3, None));
    }

    #[test]
    fn a_run_on_one_machine_is_named_and_one_on_several_is_not() {
        let vars = |local| {
            let size = ("OMPI_COMM_WORLD_SIZE", "2");
            of(&[
                ("OMPI_COMM_WORLD_RANK", "1"),
                size,
                ("OMPI_COMM_WORLD_LOCAL_SIZE", local),
                ("PMIX_NAMESPACE", "x@1"),
            ])
        };
        assert_eq!(vars("2").unwrap().unwrap().local_job.as_deref(), Some("x@1"));
        assert_eq!(vars("1").unwrap().unwrap().local_job, None);
    }

    #[test]
    fn half_of_it_and_what_is_no_number_are_errors_that_name_the_variable() {
        assert_eq!(of(&[("RANK", "1")]), Err("RANK is set, and WORLD_SIZE is not".into()));
        let error = of(&[("PMI_RANK", "one"), ("PMI_SIZE", "2")]).unwrap_err();
        assert_eq!(error, "PMI_RANK is \"one\", not a number");
    }
}
