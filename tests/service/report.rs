//! The barrier report: each line with what it waited for, and whether the device ran dry.

use crate::support::{Gate, Kind};
use crate::trials::{Case, cases};
use futensor::Device;
use futensor::barrier::BarrierSite;
use futensor::sim::SimOptions;
use futures::executor::block_on;
use futures::poll;

pub fn all() -> Vec<Case> {
    cases!["report::";
        each_line_is_counted_with_its_waits
        a_wait_that_leaves_the_device_nothing_to_do_is_told_from_one_that_does_not
        a_report_is_of_its_device_and_of_its_time
        waitall_and_reads_are_sites_too
    ]
}

fn at(sites: &[BarrierSite], line: u32) -> &BarrierSite {
    let mut of_line =
        sites.iter().filter(|s| s.site.line() == line && s.site.file().ends_with("report.rs"));
    let site = of_line.next().unwrap_or_else(|| panic!("no site at line {line}: {sites:#?}"));
    assert!(of_line.next().is_none(), "one line, one site");
    site
}

fn each_line_is_counted_with_its_waits() {
    let device = Kind::CpuWithoutInline.device();
    let barriers = device.barriers();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let line = line!() + 3;
    block_on(async {
        for round in 0..3 {
            let mut wait = x.wait_to_read();
            if round == 0 {
                assert!(poll!(&mut wait).is_pending());
                gate.open();
            }
            wait.await.unwrap();
        }
    });
    let report = barriers.report();
    let site = at(&report.sites, line);
    assert_eq!(
        (site.what, site.count, site.waited, site.device),
        ("wait_to_read", 3, 1, device.name())
    );
    assert_eq!(site.total, site.worst);
    assert!(site.worst > std::time::Duration::ZERO && site.queued_max >= 1, "{site:?}");
    assert_eq!(report.total(), report.sites.iter().map(|s| s.total).sum());
    let table = report.to_string();
    assert!(
        table.lines().count() == 1 + report.sites.len() && table.contains("wait_to_read"),
        "{table}"
    );
    assert!(table.contains(&format!("report.rs:{line}")), "{table}");
}

fn a_wait_that_leaves_the_device_nothing_to_do_is_told_from_one_that_does_not() {
    for seed in 0..200 {
        let (device, simulation) = Device::simulated(SimOptions::new(seed).streams(1));
        let barriers = device.barriers();
        let x = device.ones([100]);
        let early = x.matmul(device.ones([100, 100]));
        let late = early.matmul(device.ones([100, 100]));
        // The second product is queued behind the first: the device goes on.
        let first = simulation.block_on(early.wait_to_read());
        first.expect("it ends").unwrap();
        let line = line!() + 1;
        simulation.block_on(late.wait_to_read()).expect("it ends").unwrap();
        simulation.run();
        let sites = barriers.report().sites;
        assert_eq!(
            (at(&sites, line - 3).ran_dry, at(&sites, line - 3).waited),
            (0, 1),
            "seed {seed}: {sites:?}"
        );
        let last = at(&sites, line);
        // At one poll in between it may have been done already, and then nothing was waited for.
        assert_eq!(last.ran_dry, last.waited, "seed {seed}: {sites:?}");
        assert!(at(&sites, line - 3).queued_max >= 2, "seed {seed}: {sites:?}");
    }
}

fn a_report_is_of_its_device_and_of_its_time() {
    let (one, other) = (Kind::Cpu.device(), Kind::Cpu.device());
    block_on(one.ones([2])).unwrap();
    let (barriers, all) = (one.barriers(), futensor::barrier::barriers());
    block_on(other.ones([2])).unwrap();
    assert!(barriers.report().sites.is_empty());
    let line = line!() + 1;
    block_on(async { one.ones([2]).await.map(drop) }).unwrap();
    assert_eq!(at(&barriers.report().sites, line).count, 1);
    let names: Vec<&str> = all.report().sites.iter().map(|s| s.device).collect();
    assert!(names.contains(&one.name()) && names.contains(&other.name()), "{names:?}");
}

fn waitall_and_reads_are_sites_too() {
    let device = Kind::Cpu.device();
    let barriers = device.barriers();
    let line = line!() + 2;
    block_on(async {
        device.ones([2]).item::<f32>().await.unwrap_err();
        device.waitall().await.unwrap();
        let _ = (device.ones([9000]) + 1.0).to_vec::<f32>().await.unwrap();
        let _ = (device.ones([2]) + 1.0).display().await.unwrap();
    });
    let sites = barriers.report().sites;
    // The first was wrong from the start, and waited for nothing.
    assert!(!sites.iter().any(|s| s.site.line() == line), "{sites:?}");
    let what = |k: u32| at(&sites, line + k).what;
    assert_eq!((what(1), what(2), what(3)), ("waitall", "to_vec", "display"));
}
