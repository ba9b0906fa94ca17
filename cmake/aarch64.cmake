# Toolchain file: builds for aarch64 Linux with the libraries of TIERCE_ROOT (tools/foreign_root.py).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TIERCE_ROOT)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER "") # without it there is no plug-in for NIXL
file(GLOB libstdcxx ${TIERCE_ROOT}/usr/lib/gcc/aarch64-linux-gnu/*)
string(PREPEND CMAKE_EXE_LINKER_FLAGS_INIT "-L${libstdcxx} ")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT ${TIERCE_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER) # those run on this machine
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TIERCE_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${TIERCE_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TIERCE_ROOT}/usr/share/pkgconfig)
