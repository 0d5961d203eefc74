# Writes the current commit as a C macro, touching the file only when it changes.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain --untracked-files=no
  OUTPUT_VARIABLE changes ERROR_QUIET)
if(commit STREQUAL "" AND EXISTS ${SOURCE_DIR}/COMMIT)
  # Sources that travel without their history may carry the commit in a file.
  file(STRINGS ${SOURCE_DIR}/COMMIT commit LIMIT_COUNT 1)
elseif(commit STREQUAL "")
  set(commit "unknown")
elseif(NOT changes STREQUAL "")
  string(APPEND commit "-dirty")
endif()
set(text "#define ASSAY_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
