# cmake -DSOURCE=… -DOUTPUT=… -P WriteCommit.cmake: writes JFORGE_COMMIT, the commit that SOURCE is at, into the header
# OUTPUT; "unknown" where SOURCE is no git checkout. The file is touched only when that changes, so that a build that
# changes nothing links nothing.
set(commit unknown)
if(EXISTS "${SOURCE}/.git")
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" describe --always --abbrev=12 --dirty=+changes --exclude=*
                    OUTPUT_VARIABLE described RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0)
      set(commit "${described}")
    endif()
  endif()
endif()
set(text "#define JFORGE_COMMIT \"${commit}\"\n")
set(written "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" written)
endif()
if(NOT text STREQUAL written)
  file(WRITE "${OUTPUT}" "${text}")
endif()
