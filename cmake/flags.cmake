# Compiler flags shared by every target, as interface library `assay_flags`.
add_library(assay_flags INTERFACE)
target_include_directories(assay_flags INTERFACE ${CMAKE_SOURCE_DIR})
# -ffp-contract=off: a*b+c rounds the same on every machine unless code says std::fma.
# -fopenmp-simd: `#pragma omp simd` hints without the OpenMP run-time library.
target_compile_options(assay_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -ffp-contract=off -fopenmp-simd>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 raises false alarms on "literal" + std::string (GCC bug 105651).
  target_compile_options(assay_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(ASSAY_WERROR)
  target_compile_options(assay_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(ASSAY_SANITIZE STREQUAL "address")
  # Left out: checks that double the compile time of template-heavy code and find little that the
  # address sanitizer does not stop at. The rooms with kernels add alignment again.
  target_compile_options(assay_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer
    -fno-sanitize-recover=undefined
    -fno-sanitize=null,vptr,object-size,alignment,nonnull-attribute,returns-nonnull-attribute)
  target_link_options(assay_flags INTERFACE -fsanitize=address,undefined)
elseif(ASSAY_SANITIZE STREQUAL "thread")
  target_compile_options(assay_flags INTERFACE -fsanitize=thread)
  target_link_options(assay_flags INTERFACE -fsanitize=thread)
elseif(NOT ASSAY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "ASSAY_SANITIZE=${ASSAY_SANITIZE}: use address, thread or nothing")
endif()
if(ASSAY_BUNDLE)
  target_link_options(assay_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
find_package(Threads REQUIRED)
target_link_libraries(assay_flags INTERFACE Threads::Threads)

# Misaligned loads and stores are undefined behaviour that x86 forgives: the rooms with kernels link
# this (options of a library that is linked later come later).
add_library(assay_alignment_check INTERFACE)
if(ASSAY_SANITIZE STREQUAL "address")
  target_compile_options(assay_alignment_check INTERFACE -fsanitize=alignment)
endif()

# assay_library(NAME SOURCES... DEPENDS targets...): a static library of one room.
function(assay_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC assay_flags ${ARG_DEPENDS})
endfunction()

# assay_compile_in_groups(NAME [HOT sources...]): for rooms of text and bookkeeping. Half of their compile time is reading the
# same headers again, and -O3 doubles the rest and gains nothing: four files at a time, at -O1. HOT: alone, at -O3.
function(assay_compile_in_groups name)
  cmake_parse_arguments(ARG "" "" "HOT" ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_property(SOURCE ${ARG_HOT} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  set_property(SOURCE ${ARG_HOT} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# What CI builds under sanitizers; `./test asan` and `./test tsan` run everything.
add_custom_target(assay_inner_tests)     # address sanitizer: base, io, cpu, ops, replay
add_custom_target(assay_threaded_tests)  # thread sanitizer: base and cpu, where threads are made

# assay_test(NAME [SERIAL] SOURCES... DEPENDS... [LABELS]): one GoogleTest program, discovered by
# ctest. SERIAL: it measures time and runs alone. LABELS: cpu (default), gpu; the inner rooms get theirs.
function(assay_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT BUILD_TESTING OR NOT ASSAY_HAVE_GTEST)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE assay_flags ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE ASSAY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE room)
  if(ARG_LABELS STREQUAL "gpu")
    # they skip where CI runs
  elseif(room MATCHES "^(base|cpu)")
    set(ARG_LABELS threads)  # discovered tests can have one label only
    add_dependencies(assay_threaded_tests ${name})
    add_dependencies(assay_inner_tests ${name})
  elseif(room MATCHES "^(io|ops|replay)")
    set(ARG_LABELS inner)
    add_dependencies(assay_inner_tests ${name})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL})
endfunction()
