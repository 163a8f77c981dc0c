//! Small values in configuration files, here in JSON: what is written is read back, what is not
//! there has its default, and what is no such value is refused with a sentence.

use futensor::nn::RecurrentOptions;
use futensor::optim::{Constant, Cosine, Schedule, StepDecay, Warmup};
use futensor::serve::BatchOptions;
use futensor::{
    CpuOptions, DType, Device, GeneratorState, InterpolateMode, PadMode, Reduction, ScatterMode,
    Shape,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, from_value, json, to_value};
use std::fmt::Debug;
use std::time::Duration;

/// Reads a value, and writes it again.
fn is<T: Serialize + DeserializeOwned + Debug>(text: Value, value: &T) {
    assert_eq!(to_value(value).unwrap(), text);
    let read: T = from_value(text).unwrap();
    assert_eq!(format!("{read:?}"), format!("{value:?}"));
}

fn refused<T: DeserializeOwned + Debug>(text: Value, says: &str) {
    let error = from_value::<T>(text.clone()).unwrap_err().to_string();
    assert!(error.contains(says), "{text}: {error}");
}

#[test]
fn types_shapes_and_devices_have_their_names() {
    for dtype in DType::ALL {
        is(json!(dtype.name()), &dtype);
    }
    is(json!("bfloat16"), &DType::BF16);
    is(json!([2, 3]), &Shape::from([2, 3]));
    is(json!([1, 2, 3, 4, 5, 6]), &Shape::from([1, 2, 3, 4, 5, 6].as_slice()));
    is(json!([]), &Shape::from(()));
    is(json!("cpu"), &Device::cpu());
    is(json!({ "seed": 7, "position": 12 }), &GeneratorState { seed: 7, position: 12 });
    is(json!("reflect"), &PadMode::Reflect);
    is(json!("none"), &Reduction::None);
    is(json!("prod"), &ScatterMode::Prod);
    is(json!("nearest-exact"), &InterpolateMode::NearestExact);
}

#[test]
fn options_are_read_through_their_setters() {
    let layers = RecurrentOptions::default().layers(2);
    is(json!({ "layers": 2, "bidirectional": false, "bias": true, "batch_first": false }), &layers);
    let batch = BatchOptions::default().batch_max(8).delay(Duration::from_micros(1500));
    is(
        json!({ "batch_max": 8, "delay": 0.0015, "eager": false, "isolate": true, "in_flight": 2,
            "queue": 256 }),
        &batch,
    );
    let read: BatchOptions = from_value(json!({ "batch_max": 0 })).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", BatchOptions::default().batch_max(0)));
    let cpu = CpuOptions::default().threads(1).watchdog(Some(Duration::from_secs(3))).nice(-2);
    is(to_value(&cpu).unwrap(), &cpu);
    assert_eq!(to_value(&cpu).unwrap()["watchdog"], json!(3.0));
    let few = json!({ "threads": 1, "linger": 1e30 });
    let read: CpuOptions = from_value(few).unwrap();
    let same = CpuOptions::default().threads(1).linger(Duration::MAX);
    assert_eq!(format!("{read:?}"), format!("{same:?}"));
    is(to_value(&same).unwrap(), &same);
}

/// As a program has it.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Config {
    device: Device,
    dtype: DType,
    schedule: Warmup<Cosine>,
    #[serde(default)]
    cpu: CpuOptions,
}

#[test]
fn a_whole_configuration_is_read() {
    let config = json!({
        "device": "cpu",
        "dtype": "float32",
        "schedule": { "steps": 10, "then": { "lr": 1.0, "steps": 100 } },
    });
    let config: Config = from_value(config).unwrap();
    let device = Device::cpu_with(config.cpu);
    assert_eq!((config.device, config.dtype), (Device::cpu(), DType::F32));
    assert_eq!((config.schedule.lr(4), config.schedule.lr(60)), (0.5, 0.5));
    // A device of the program's own has a name, which opens no other.
    let error = to_value(&device).unwrap_err().to_string();
    assert!(error.contains("belongs to this program"), "{error}");
    is(json!(0.5), &Constant(0.5));
    is(json!({ "lr": 1.0, "every": 2, "factor": 0.5 }), &StepDecay::new(1.0, 2, 0.5));
}

#[test]
fn nonsense_is_refused_with_a_sentence() {
    refused::<DType>(json!("float31"), "there is no type \"float31\"; these are: float32, ");
    refused::<DType>(json!(3), "the name of a type");
    refused::<Shape>(json!([2, -1]), "-1");
    refused::<Shape>(json!([2.5]), "2.5");
    refused::<Shape>(json!("2x3"), "sequence");
    refused::<Device>(json!("gpu"), "there is no device \"gpu\": it is cpu or cuda:N");
    refused::<Device>(json!("cpu:1"), "there is no device");
    refused::<Device>(json!("cuda:-1"), "there is no device");
    refused::<Device>(json!("cuda:999"), "cuda:999 is not available");
    refused::<BatchOptions>(json!({ "delay": -0.5 }), "a duration of -0.5 seconds");
    refused::<BatchOptions>(json!({ "timer": null }), "unknown field `timer`");
    refused::<BatchOptions>(json!({ "queue": -1 }), "-1");
    refused::<CpuOptions>(json!({ "thread": 2 }), "unknown field `thread`");
    refused::<CpuOptions>(json!({ "inline": "yes" }), "boolean");
    refused::<Reduction>(json!("avg"), "unknown variant `avg`");
    refused::<StepDecay>(json!({ "lr": 1.0, "every": 0, "factor": 0.5 }), "nonzero");
    refused::<Cosine>(json!({ "lr": 1.0, "steps": 0 }), "nonzero");
    refused::<Cosine>(json!({ "steps": 5 }), "missing field `lr`");
    refused::<GeneratorState>(json!({ "seed": -1, "position": 0 }), "-1");
}
