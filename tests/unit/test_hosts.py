"""What a profile says about hosts, what the engine is told of it, and who may be cleaned away. No engine is asked."""

import re

import pytest
from docker.types import DeviceRequest

from netlab import parse_profile, plan, topology
from netlab.errors import PlanError, ProfileError
from netlab.hosts import creation, machine, oom
from netlab.hosts.clean import judge
from netlab.hosts.engine import Engine, EngineError, unfit
from netlab.hosts.machine import Bind, Machine
from netlab.hosts.order import Order, Owner, Wanted, place
from netlab.hosts.realtime import group_of_cpu
from netlab.hosts.settings import HostSettings, Volume
from netlab.units import Size

OWNER = Owner(pid=100, start=5000, boot="b", pid_namespace="pid:[1]")
ENGINE = Engine(api=None, url="unix:///d.sock", info={"DockerRootDir": "/var/lib/docker"}, version={})
MACHINE = Machine((("bin", "usr/bin"),), (Bind("/usr", "/usr"), Bind("/var", "/var")), ("/var/lib/docker",))


def profile(hosts="", a="", b=""):
    text = f"sites: {{a: {{workers: 3{a}}}, b: {{workers: 1{b}}}}}\nlinks: [{{between: [a, b], rtt: 1ms}}]\n{hosts}"
    return parse_profile(text, "dir/f.yaml")


def faults(hosts):
    with pytest.raises(ProfileError) as caught:
        profile(a=f", hosts: {{{hosts}}}")
    return "\n".join(caught.value.problems)


def test_the_narrower_place_counts_and_volumes_and_variables_add_up():
    found = profile(
        "hosts: {image: all, memory: 1GiB, environment: {X: 1, Y: 1}, volumes: [/a:/a, /b:/b]}",
        a=", hosts: {image: site, environment: {Y: 2}, volumes: ['/c:/b:ro'], workers: {1: {image: one, user: me}}}",
    )
    whole = {"memory": Size(1 << 30), "environment": (("X", "1"), ("Y", "2"))}
    whole["volumes"] = (Volume("/a", "/a", False), Volume("/c", "/b", True))
    assert found.settings("a", 0) == HostSettings(image="site", **whole)
    assert found.settings("a", 1) == HostSettings(image="one", user="me", **whole)
    assert found.settings("b", 0).image == "all"
    assert profile().settings("a", 0) == HostSettings()
    assert HostSettings().on_machine


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("imag: x", 'sites.a.hosts.imag: unknown key .*did you mean "image"'),
        ("privileged: true", "containers of a lab need no privilege"),
        ("image: '-x'", "sites.a.hosts.image: '-x' is not allowed: the name of an image"),
        ("memory: 1MiB", "sites.a.hosts.memory: '1MiB' is too small: at least 6MiB"),
        ("memory: 5", "sites.a.hosts.memory: '5'"),
        ("cpuset: 0-", "CPU numbers, like"),
        ("cpus: 0", "a number from 0.01 to 4096"),
        ("gpus: 0", '"all", a number, or a list of ids'),
        ("gpus: [a b]", "as nvidia-smi -L shows them"),
        ("volumes: [/a]", "'/a' is no volume: SOURCE:TARGET"),
        ("volumes: ['/a:b']", "TARGET absolute"),
        ("volumes: ['/a:/b:rx']", "is no volume"),
        ("volumes: ['data:/b']", "'data' is no path: absolute, or from the profile's folder with ./"),
        ("volumes: ['/a:/../b']", "is no place for a volume"),
        ("volumes: ['/a:/']", "is no place for a volume"),
        ("environment: {1X: 2}", "'1X' is no name of a variable"),
        ("environment: {X: [1]}", "a list found where a value is wanted"),
        ("user: 'a b'", "USER or USER:GROUP"),
        ("workdir: here", "an absolute path"),
        ("workers: {3: {}}", "'3' is no worker of this site: 0 to 2 are"),
        ("workers: {'01': {}}", "'01' is no worker of this site"),
        ("workers: {0: {workers: {}}}", "sites.a.hosts.workers.'?0'?.workers: unknown key"),
    ],
)
def test_a_faulty_setting_names_its_key_and_what_is_allowed(hosts, said):
    assert re.search(said, faults(hosts))


def test_bare_processes_refuse_what_they_cannot_honour():
    with pytest.raises(PlanError, match=r"dir/f.yaml: sites.a.hosts.workers.2.user: bare processes are not confined"):
        plan.make(topology.build(profile(a=", hosts: {workers: {2: {user: x}}}")), "relay")


def test_a_plan_joins_containers_for_workers_and_makes_namespaces_for_the_rest():
    made = plan.make(topology.build(profile(a=", hosts: {image: i}")), "relay", "docker")
    said = [operation.describe() for operation in made.operations[:6]]
    prefix, suffix = "docker run --detach --rm --network none --hostname", "netlab-init"
    assert [line for line in said if line.startswith("docker")][:3] == [f"{prefix} a-{n} i {suffix}" for n in range(3)]
    assert [line for line in said if line.startswith("ip")] == ["ip netns add a.router", "ip netns add b.router"]
    assert "[a-0] sysctl net.ipv4.ping_group_range='0 2147483647'" in made.describe()
    assert "[a.router] sysctl net.ipv4.ping_group_range='0 0'" in made.describe()


def order_of(settings, writable=()):
    wanted = Wanted("a-0", settings)
    return Order("1234" * 8, "p", "/profiles", OWNER, (wanted,), (("a-0", "10.1.0.2"),), (), tuple(writable)), wanted


def test_a_container_is_confined_and_has_no_network():
    order, wanted = order_of(HostSettings(image="i"))
    config = creation.host_config(order, wanted, None, ENGINE)
    assert config["network_mode"] == "none"
    assert config["auto_remove"] is True
    assert config["security_opt"] == ["no-new-privileges:true"]
    assert config["extra_hosts"] == {"a-0": "10.1.0.2"}
    assert not {"privileged", "cap_add", "pid_mode", "ipc_mode", "devices", "read_only"} & set(config)
    made = creation.container_config(order, wanted, "i")
    assert (made["hostname"], made["entrypoint"], made["command"]) == ("a-0", ["/.netlab-init"], ["listen", "60"])
    assert made["labels"]["netlab.lab"] == "1234" * 8
    assert Owner.of_labels(made["labels"]) == OWNER


def test_the_engine_is_told_every_setting():
    settings = HostSettings("i", 1.5, "0-1", Size(1 << 30), Size(1 << 20), ("#2",), (Volume("./d", "/d", True),))
    order, wanted = order_of(settings, ["/runs"])
    config = creation.host_config(order, wanted, None, ENGINE)
    assert (config["nano_cpus"], config["cpuset_cpus"]) == (1_500_000_000, "0-1")
    assert (config["mem_limit"], config["memswap_limit"], config["shm_size"]) == (1 << 30, 1 << 30, 1 << 20)
    assert config["device_requests"] == [DeviceRequest(count=2, capabilities=[["gpu"]])]
    mounts = {mount["Target"]: (mount["Source"], mount["ReadOnly"]) for mount in config["mounts"]}
    assert mounts["/d"] == ("/profiles/d", True)
    assert mounts["/runs"] == ("/runs", False)
    assert creation.device_request(("all",)) == DeviceRequest(count=-1, capabilities=[["gpu"]])
    assert creation.device_request(("3", "4")) == DeviceRequest(device_ids=["3", "4"], capabilities=[["gpu"]])


def test_over_this_machine_everything_is_read_only_but_what_is_said_to_be_writable():
    order, wanted = order_of(HostSettings(), ["/usr"])
    config = creation.host_config(order, wanted, MACHINE, ENGINE)
    assert config["read_only"] is True
    mounts = {mount["Target"]: mount for mount in config["mounts"]}
    assert [target for target, mount in mounts.items() if not mount["ReadOnly"]] == ["/usr"]
    assert mounts["/var"]["BindOptions"] == {"NonRecursive": True}  # contains the engine's own files
    assert mounts["/.netlab-init"]["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}
    assert set(config["tmpfs"]) == {"/tmp", "/var/tmp", "/run", "/var/lib/docker"}
    assert "noexec" not in config["tmpfs"]["/tmp"]


def test_an_engine_that_remaps_users_or_labels_files_is_told_not_to_over_this_machine():
    info = {"SecurityOptions": ["name=seccomp,profile=default", "name=userns", "name=selinux"]}
    engine = Engine(api=None, url="", info=info, version={})
    order, wanted = order_of(HostSettings())
    config = creation.host_config(order, wanted, MACHINE, engine)
    assert config["userns_mode"] == "host"
    assert config["security_opt"] == ["no-new-privileges:true", "label=disable"]


def test_two_labs_of_one_profile_have_nothing_in_common_by_which_to_take_one_for_the_other():
    made = plan.make(topology.build(profile()), "relay", "docker")
    one, two = (place(made, OWNER, (), ()) for _ in range(2))
    assert one.lab != two.lab
    assert one.name("a-0") != two.name("a-0")
    assert one.folder.endswith("/dir")


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        (None, ()),
        (("all",), ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")),
        (("#1",), ("/dev/nvidia0", "/dev/nvidiactl")),
        (("1",), ("/dev/nvidia1", "/dev/nvidiactl")),
    ],
)
def test_gpus_over_this_machine_are_its_device_files(gpus, devices):
    here = Machine((), (), (), gpus=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"))
    assert here.gpu_devices(gpus) == devices


@pytest.mark.parametrize("gpus", [("2",), ("#3",), ("GPU-1234",)])
def test_a_gpu_that_is_not_there_is_refused(gpus):
    here = Machine((), (), (), gpus=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"))
    with pytest.raises(EngineError, match="here are: 0, 1"):
        here.gpu_devices(gpus)
    with pytest.raises(EngineError, match="no driver"):
        Machine((), (), ()).gpu_devices(("all",))


def test_the_image_of_a_machine_is_the_same_every_time():
    assert MACHINE.image() == MACHINE.image()
    assert machine.digest(MACHINE.image()) != machine.digest(Machine((), (), ()).image())


def test_only_file_systems_that_hold_files_are_shown():
    text = (
        "22 1 0:20 / / rw - ext4 /dev/sda1 rw\n23 22 0:21 / /proc rw - proc proc rw\n"
        "24 22 8:2 / /home/my\\040disk rw shared:1 - xfs /dev/sdb rw\n25 22 0:40 / /snap/x ro - squashfs /dev/l0 ro\n"
        "26 22 0:41 / /media/phone rw - fuse.mtpfs m rw\n"
    )
    assert list(machine.mounted(text)) == ["/home/my disk"]


def test_only_sockets_that_somebody_listens_on_are_covered():
    text = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000: 00000002 00000000 00010000 0001 01 11 /run/docker.sock\n"
        "0000: 00000003 00000000 00000000 0001 03 12 /run/docker.sock\n"
        "0000: 00000002 00000000 00010000 0001 01 13 @abstract\n"
        "0000: 00000002 00000000 00010000 0005 01 14 /srv/my app/s\n"
        "0000: 00000002 00000000 00000000 0002 01 15\n"
    )
    assert machine.listening(text) == ["/run/docker.sock", "/srv/my app/s"]


def test_users_of_this_machine_go_by_number():
    assert machine.user_ids("root") == "0:0"
    assert machine.user_ids("0:7") == "0:7"
    with pytest.raises(EngineError, match="no such user or group"):
        machine.user_ids("nobody-has-this-name")


@pytest.mark.parametrize(
    ("owner", "start", "verdict"),
    [
        (OWNER, 5000, "alive"),
        (OWNER, 5001, "dead"),
        (OWNER, None, "dead"),
        (Owner(100, 5000, "another boot", "pid:[9]"), 5000, "dead"),
        (Owner(100, 5000, "b", "pid:[9]"), 5000, "unknown"),
        (None, 5000, "unknown"),
    ],
)
def test_an_owner_is_dead_only_when_that_is_beyond_doubt(owner, start, verdict):
    assert judge(owner, "b", "pid:[1]", start) == verdict


@pytest.mark.parametrize(
    ("info", "version", "said"),
    [
        ({}, {"Components": [{"Name": "Podman Engine"}]}, "is Podman"),
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, {}, "is rootless"),
        ({"OSType": "windows"}, {}, "runs windows containers"),
        ({"KernelVersion": "6.6.0-linuxkit"}, {}, r"another kernel \(6.6.0-linuxkit, here is 6.1\).*netlab compose"),
        ({}, {"ApiVersion": "1.39"}, "too old: API 1.39, 1.40 is needed"),
    ],
)
def test_an_engine_that_cannot_hold_a_lab_is_refused_with_the_reason(info, version, said):
    sound = {"OSType": "linux", "KernelVersion": "6.1", "SecurityOptions": ["name=seccomp"]}
    assert unfit(sound, {"ApiVersion": "1.41"}, "6.1") is None
    assert re.search(said, unfit(sound | info, {"ApiVersion": "1.41"} | version, "6.1"))


def test_kills_for_memory_are_found_with_both_versions_of_cgroups():
    one, two = "9:name=systemd:/d/x\n4:cpu,memory:/d/x\n0::/d/x\n", "0::/system.slice/docker-x.scope\n"
    assert [str(path) for path in oom.files(one)] == [
        "/sys/fs/cgroup/memory/d/x/memory.oom_control",
        "/sys/fs/cgroup/d/x/memory.events",
    ]
    assert [str(path) for path in oom.files(two)] == ["/sys/fs/cgroup/system.slice/docker-x.scope/memory.events"]
    assert oom.count("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n") == 2
    assert oom.count("low 0\nhigh 0\nmax 31\noom 3\noom_kill 3\noom_group_kill 0\n") == 3


def test_the_cpu_group_is_found_among_all_controllers():
    assert group_of_cpu("9:name=systemd:/d/x\n4:cpu,cpuacct:/d/x\n0::/d/x\n") == ("cpu,cpuacct", "/d/x")
    assert group_of_cpu("3:cpuset:/d/x\n1:cpu:/\n0::/d/x\n") is None
    assert group_of_cpu("0::/system.slice/docker-x.scope\n") is None
