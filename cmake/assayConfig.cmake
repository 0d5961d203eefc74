# find_package(assay): assay::plugin, the C interface of plugins (a header).
if(NOT TARGET assay::plugin)
  add_library(assay::plugin INTERFACE IMPORTED)
  get_filename_component(assay_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  set_target_properties(assay::plugin PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${assay_prefix}/include")
endif()
set(assay_FOUND TRUE)
