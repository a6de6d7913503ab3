"""Make sure that some WebGPU adapter exists for the tests: install Mesa's software Vulkan where there is none.

Exits with 0 either way: without an adapter the GPU tests are skipped, and say so.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = ["mesa-vulkan-drivers"]
LIST_ADAPTERS = (
    "import wgpu\n"
    "found = wgpu.gpu.enumerate_adapters_sync()\n"
    "names = [adapter.summary for adapter in found if adapter.info['backend_type'] != 'OpenGL']\n"
    "print('; '.join(names))\n"
    "raise SystemExit(not names)"
)


def adapters() -> str:
    """The WebGPU adapters on this machine, empty where there is none; OpenGL lacks the compute features needed.

    Asked in a process of its own: wgpu looks only once.
    """
    done = subprocess.run([sys.executable, "-c", LIST_ADAPTERS], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def apt_prefix() -> list[str] | None:
    """How to run apt-get as root without asking for a password, or None where that is not possible."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def main() -> None:
    if found := adapters():
        print(f"WebGPU adapters: {found}")
        return
    prefix = apt_prefix()
    if prefix is None:
        print("No WebGPU adapter, and this user cannot install one: the GPU tests will be skipped.")
        print(f"To run them on software Vulkan, as root: apt-get install {' '.join(PACKAGES)}")
        return
    print(f"No WebGPU adapter: installing {' '.join(PACKAGES)}")
    environment = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*environment, "apt-get", "update", "--quiet"])
    subprocess.run([*environment, "apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *PACKAGES])
    print(f"WebGPU adapters: {adapters() or 'none even so: the GPU tests will be skipped'}")


if __name__ == "__main__":
    main()
