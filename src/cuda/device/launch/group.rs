//! Fused groups on a device: one kernel where it is compiled, else op by op.
//!
//! A program of one op always has its kernel. A longer one gets its own kernel when it has been
//! seen often enough (`modules/store`); until then each op is a launch, and values between ops lie
//! in scratch memory that later ops use again. Both give the same bits: every instruction rounds to
//! its own type.

use super::launcher::Launcher;
use crate::cuda::device::libraries::nvidia::Function;
use crate::cuda::device::{DeviceView, DeviceViewMut, Site, Trouble};
use crate::cuda::kernels::{Operand, Plan, align, elementwise, reduce};
use crate::graph::program::{Code, Program, Reg};
use crate::op::ReduceOp;
use crate::shape::{Strides, contiguous_strides};
use smallvec::SmallVec;

/// A reduction at the end of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub op: ReduceOp,
    /// Which dimensions of the group's shape go.
    pub dims: &'a [bool],
    /// The register that is reduced.
    pub reg: Reg,
    pub output: DeviceViewMut<'a>,
}

/// Where an input or a register lies, as a kernel is planned for it.
#[derive(Clone)]
struct Place {
    ptr: u64,
    strides: Strides,
}

impl Place {
    fn operand(&self) -> Operand<'_> {
        Operand::at(self.ptr, &self.strides)
    }
}

/// True where the program does one thing: its kernel is no fused one. Conversions and constants
/// beside it do not count, as they belong to it.
fn is_single(program: &Program) -> bool {
    let counts = |code: &Code| !matches!(code, Code::Input(_) | Code::Cast(_) | Code::Fill(_));
    program.outputs.len() == 1 && program.instrs.iter().filter(|i| counts(&i.code)).count() <= 1
}

impl Launcher {
    /// Runs a program over `shape`. Inputs are broadcast to it by strides of 0; there is an output
    /// for each of `program.outputs`; `end` reduces a register. An output may be the memory of an
    /// input that is contiguous and read for the last time.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub fn group(
        &mut self,
        site: &dyn Site,
        program: &Program,
        shape: &[usize],
        inputs: &[DeviceView<'_>],
        outputs: &[DeviceViewMut<'_>],
        end: Option<End<'_>>,
    ) -> Result<(), Trouble> {
        let places: SmallVec<[Place; 4]> = inputs
            .iter()
            .map(|v| Place { ptr: v.ptr, strides: Strides::from_slice(v.strides) })
            .collect();
        let to: SmallVec<[u64; 2]> = outputs.iter().map(|v| v.ptr).collect();
        if !outputs.is_empty() {
            let (part, used) = program.only(&program.outputs);
            let places: SmallVec<[Place; 4]> =
                used.iter().map(|&k| places[k as usize].clone()).collect();
            self.elementwise(site, &part, shape, &places, &to)?;
        }
        let Some(end) = end else { return Ok(()) };
        // A value that was written out is read back; one that was not is computed on the way.
        if let Some(k) = program.outputs.iter().position(|&r| r == end.reg) {
            let written = Place { ptr: to[k], strides: contiguous_strides(shape) };
            let identity = reduce::identity(program.dtype(end.reg));
            return self.reduce_program(site, &identity, shape, &[written], &end);
        }
        let (part, used) = program.only(&[end.reg]);
        let places: SmallVec<[Place; 4]> =
            used.iter().map(|&k| places[k as usize].clone()).collect();
        self.reduce_program(site, &part, shape, &places, &end)
    }

    /// A program whose outputs are all it has.
    fn elementwise(
        &mut self,
        site: &dyn Site,
        program: &Program,
        shape: &[usize],
        places: &[Place],
        to: &[u64],
    ) -> Result<(), Trouble> {
        let least = to.iter().map(|&ptr| align(ptr)).min().unwrap_or(16);
        let operands: SmallVec<[Operand<'_>; 4]> = places.iter().map(Place::operand).collect();
        let plan = elementwise::plan(program, shape, &operands, least);
        let from: SmallVec<[u64; 4]> = places.iter().map(|p| p.ptr).collect();
        if is_single(program) {
            return self.run(site, &plan, &from, to);
        }
        match self.fused(&plan)? {
            Some(functions) => self.launch_plan(site, &plan, &functions, &from, to),
            None => {
                let mut steps = OpByOp::new(program, shape, places);
                for (k, &reg) in program.outputs.iter().enumerate() {
                    steps.outputs.push((reg, to[k]));
                }
                steps.run(self, site).map(drop)
            }
        }
    }

    /// A reduction of a program's one output.
    fn reduce_program(
        &mut self,
        site: &dyn Site,
        program: &Program,
        shape: &[usize],
        places: &[Place],
        end: &End<'_>,
    ) -> Result<(), Trouble> {
        let from: SmallVec<[u64; 4]> = places.iter().map(|p| p.ptr).collect();
        let to = [end.output.ptr];
        let plan = {
            let operands: SmallVec<[Operand<'_>; 4]> = places.iter().map(Place::operand).collect();
            reduce::plan(end.op, program, shape, end.dims, &operands)
        };
        let plain = program.instrs.len() == 1 && matches!(program.instrs[0].code, Code::Input(_));
        match plan {
            Some(plan) if plain => return self.run(site, &plan, &from, &to),
            Some(plan) => {
                // The launch that joins the splits is no fused one, but it comes with it.
                if let Some(functions) = self.fused(&plan)? {
                    return self.launch_plan(site, &plan, &functions, &from, &to);
                }
            }
            None => {}
        }
        let steps = OpByOp::new(program, shape, places);
        let reg = program.outputs[0];
        let whole =
            Place { ptr: steps.value(self, site, reg)?, strides: contiguous_strides(shape) };
        let identity = reduce::identity(program.dtype(reg));
        match reduce::plan(end.op, &identity, shape, end.dims, &[whole.operand()]) {
            Some(plan) => self.run(site, &plan, &[whole.ptr], &to),
            None => Err(Trouble::no_kernel(format_args!("{} over {shape:?}", end.op.name()))),
        }
    }

    /// The fused kernels of a plan, where all are there.
    fn fused(&mut self, plan: &Plan) -> Result<Option<SmallVec<[Function; 2]>>, Trouble> {
        let mut functions: SmallVec<[Function; 2]> = SmallVec::new();
        for launch in &plan.launches {
            match self.modules.fused(&launch.kernel)? {
                Some(function) => functions.push(function),
                None => return Ok(None),
            }
        }
        Ok(Some(functions))
    }
}

/// A program, an instruction a launch.
struct OpByOp<'a> {
    program: &'a Program,
    shape: &'a [usize],
    inputs: &'a [Place],
    /// Registers that go to memory of the caller's.
    outputs: SmallVec<[(Reg, u64); 2]>,
}

/// Scratch memory of one step that is handed on from value to value.
#[derive(Default)]
struct Pool {
    /// Bytes and address.
    free: SmallVec<[(usize, u64); 8]>,
}

impl Pool {
    fn take(&mut self, site: &dyn Site, bytes: usize) -> Result<(usize, u64), Trouble> {
        let fits =
            self.free.iter().enumerate().filter(|(_, f)| f.0 >= bytes).min_by_key(|(_, f)| f.0);
        match fits.map(|(at, _)| at) {
            Some(at) => Ok(self.free.swap_remove(at)),
            None => Ok((bytes, site.scratch(bytes)?)),
        }
    }
}

impl<'a> OpByOp<'a> {
    fn new(program: &'a Program, shape: &'a [usize], inputs: &'a [Place]) -> OpByOp<'a> {
        OpByOp { program, shape, inputs, outputs: SmallVec::new() }
    }

    /// Computes a register to scratch memory.
    fn value(mut self, launcher: &mut Launcher, site: &dyn Site, reg: Reg) -> Result<u64, Trouble> {
        let bytes = crate::shape::numel(self.shape) * self.program.dtype(reg).size();
        let ptr = site.scratch(bytes)?;
        self.outputs.push((reg, ptr));
        self.run(launcher, site)?;
        Ok(ptr)
    }

    /// True for instructions that are computed with their reader: constants and conversions.
    fn is_folded(&self, reg: Reg) -> bool {
        matches!(self.program.instrs[reg as usize].code, Code::Cast(_) | Code::Fill(_))
            && !self.outputs.iter().any(|o| o.0 == reg)
    }

    fn run(&self, launcher: &mut Launcher, site: &dyn Site) -> Result<(), Trouble> {
        let instrs = &self.program.instrs;
        let numel = crate::shape::numel(self.shape);
        // The last instruction that reads each register's memory, through the instructions folded
        // into it.
        let mut last: SmallVec<[usize; 48]> = SmallVec::from_elem(0, instrs.len());
        for i in 0..instrs.len() {
            if !self.is_folded(i as Reg) {
                self.read_by(i as Reg).into_iter().for_each(|r| last[r as usize] = i);
            }
        }
        let mut pool = Pool::default();
        let mut at: SmallVec<[Option<Place>; 48]> = SmallVec::from_elem(None, instrs.len());
        let mut own: SmallVec<[Option<(usize, u64)>; 48]> = SmallVec::from_elem(None, instrs.len());
        for i in 0..instrs.len() {
            if let Code::Input(k) = instrs[i].code {
                at[i] = Some(self.inputs[k as usize].clone());
                // An input that is asked for as it is.
                let copies: SmallVec<[u64; 2]> =
                    self.outputs.iter().filter(|o| o.0 as usize == i).map(|o| o.1).collect();
                for to in copies {
                    self.one(launcher, site, i as Reg, &at, to)?;
                }
                continue;
            }
            if self.is_folded(i as Reg) {
                continue;
            }
            let wanted: SmallVec<[u64; 2]> =
                self.outputs.iter().filter(|o| o.0 as usize == i).map(|o| o.1).collect();
            let to = match wanted.first() {
                Some(&to) => to,
                None => {
                    let block = pool.take(site, numel * instrs[i].dtype.size())?;
                    own[i] = Some(block);
                    block.1
                }
            };
            self.one(launcher, site, i as Reg, &at, to)?;
            at[i] = Some(Place { ptr: to, strides: contiguous_strides(self.shape) });
            for &also in wanted.iter().skip(1) {
                self.one(launcher, site, i as Reg, &at, also)?;
            }
            for r in 0..=i {
                if last[r] <= i
                    && let Some(block) = own[r].take()
                {
                    pool.free.push(block);
                }
            }
        }
        Ok(())
    }

    /// The registers in memory that computing this one reads.
    fn read_by(&self, reg: Reg) -> SmallVec<[Reg; 4]> {
        let mut found: SmallVec<[Reg; 4]> = SmallVec::new();
        let mut open: SmallVec<[Reg; 4]> =
            self.program.instrs[reg as usize].code.operands().collect();
        while let Some(r) = open.pop() {
            if self.is_folded(r) {
                open.extend(self.program.instrs[r as usize].code.operands());
            } else {
                found.push(r);
            }
        }
        found
    }

    /// Computes one register to `to`, with the instructions folded into it.
    fn one(
        &self,
        launcher: &mut Launcher,
        site: &dyn Site,
        reg: Reg,
        at: &[Option<Place>],
        to: u64,
    ) -> Result<(), Trouble> {
        let mut build = Build {
            steps: self,
            at,
            part: Program::default(),
            regs: SmallVec::new(),
            places: SmallVec::new(),
        };
        let out = match at[reg as usize] {
            Some(_) => build.read(reg),
            None => build.instr(reg),
        };
        build.part.outputs.push(out);
        let operands: SmallVec<[Operand<'_>; 4]> =
            build.places.iter().map(Place::operand).collect();
        let plan = elementwise::plan(&build.part, self.shape, &operands, align(to));
        let from: SmallVec<[u64; 4]> = build.places.iter().map(|p| p.ptr).collect();
        launcher.run(site, &plan, &from, &[to])
    }
}

/// The program of one register, as it is written.
struct Build<'a> {
    steps: &'a OpByOp<'a>,
    at: &'a [Option<Place>],
    part: Program,
    /// Registers of the whole program, and their numbers here.
    regs: SmallVec<[(Reg, Reg); 4]>,
    places: SmallVec<[Place; 4]>,
}

impl Build<'_> {
    /// A register as an operand.
    fn read(&mut self, reg: Reg) -> Reg {
        if let Some(&(_, own)) = self.regs.iter().find(|(r, _)| *r == reg) {
            return own;
        }
        let own = match &self.at[reg as usize] {
            Some(place) => {
                let dtype = self.steps.program.dtype(reg);
                self.places.push(place.clone());
                self.part.push(Code::Input((self.places.len() - 1) as u8), dtype, dtype)
            }
            None => self.instr(reg),
        };
        self.regs.push((reg, own));
        own
    }

    /// An instruction with its operands.
    fn instr(&mut self, reg: Reg) -> Reg {
        let instr = self.steps.program.instrs[reg as usize];
        let operands: SmallVec<[(Reg, Reg); 3]> =
            instr.code.operands().map(|r| (r, self.read(r))).collect();
        let named = |r: Reg| operands.iter().find(|(old, _)| *old == r).map_or(r, |(_, own)| *own);
        self.part.push(instr.code.renamed(named), instr.on, instr.dtype)
    }
}
