# Third-party packages, all from Debian; what is optional and what its absence means is said here.
if(ASSAY_BUNDLE)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)  # OpenSSL, SQLite, zlib, xxHash: all have one in Debian
endif()
find_package(nlohmann_json 3.9 REQUIRED)
find_package(fmt 8 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(OpenSSL 3 REQUIRED)  # SHA-256 only

if(ASSAY_BUNDLE)
  set(ASSAY_FMT fmt::fmt-header-only)
else()
  set(ASSAY_FMT fmt::fmt)
endif()

# SQLite holds the ledger. Without it ledgers are JSONL files, which every build reads.
set(ASSAY_HAVE_SQLITE OFF)
if(NOT ASSAY_SQLITE STREQUAL "OFF")
  find_package(SQLite3)
  if(SQLite3_FOUND)
    set(ASSAY_HAVE_SQLITE ON)
  elseif(ASSAY_SQLITE STREQUAL "ON")
    message(FATAL_ERROR "ASSAY_SQLITE=ON, but SQLite's headers were not found")
  endif()
endif()

# xxHash marks tensors to see whether they changed during a run; without it SHA-256 does, slower.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY NAMES xxhash)

# oneDNN: the bf16 GEMM of the CPU backends. Without it our own blocked loops run (always tested).
set(ASSAY_HAVE_ONEDNN OFF)
if(NOT ASSAY_BUNDLE AND NOT ASSAY_SANITIZE)
  # Debian's dnnl-config.cmake insists on OpenCL headers that its own package does not need.
  find_path(DNNL_INCLUDE_DIR dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(ASSAY_HAVE_ONEDNN ON)
    add_library(assay_dnnl INTERFACE)
    target_include_directories(assay_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    target_link_libraries(assay_dnnl INTERFACE ${DNNL_LIBRARY})
  endif()
endif()

# Chart.js is inlined into HTML reports; without it they use plain inline SVG.
find_file(ASSAY_CHARTJS chart.min.js PATH_SUFFIXES javascript/chart.js share/javascript/chart.js)

set(ASSAY_HAVE_GTEST OFF)
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)
  find_package(GTest 1.11)
  if(GTest_FOUND)
    include(GoogleTest)
    set(ASSAY_HAVE_GTEST ON)
  else()
    message(WARNING "GoogleTest was not found: tests are not built")
  endif()
endif()

if(NOT ASSAY_SANITIZE)
  find_package(benchmark 1.6 QUIET)  # bench/ is skipped without it
endif()

message(STATUS "SQLite ledger: ${ASSAY_HAVE_SQLITE}; oneDNN: ${ASSAY_HAVE_ONEDNN}; "
               "Chart.js: ${ASSAY_CHARTJS}; Google Benchmark: ${benchmark_FOUND}")
