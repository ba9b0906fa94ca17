# tierce_protoc(SOURCES NAME...) turns src/proto/kvcm/NAME_service.proto into C, in the folder "generated" of the
# build; it appends the C files to SOURCES. The C code is made from a copy whose package lacks its first two parts, so that a
# name is Meta__Status.
function(tierce_protoc sources)
    set(in ${CMAKE_SOURCE_DIR}/src/proto/kvcm)
    set(copy ${CMAKE_BINARY_DIR}/generated/copy)
    set(out ${CMAKE_BINARY_DIR}/generated/proto/kvcm)
    file(MAKE_DIRECTORY ${copy} ${out})
    foreach(name IN LISTS ARGN)
        set(file ${name}_service)
        add_custom_command(OUTPUT ${out}/${file}.pb-c.c ${out}/${file}.pb-c.h
            COMMAND sed "s/^package kv_cache_manager[.]proto[.]/package /" ${in}/${file}.proto
                > ${copy}/${file}.proto
            COMMAND ${TIERCE_PROTOC_C} --fatal_warnings -I${copy} --c_out=${out} ${copy}/${file}.proto
            DEPENDS ${in}/${file}.proto VERBATIM)
        # Generated code has warnings of its own.
        set_source_files_properties(${out}/${file}.pb-c.c PROPERTIES COMPILE_OPTIONS -w)
        list(APPEND ${sources} ${out}/${file}.pb-c.c ${out}/${file}.pb-c.h)
    endforeach()
    set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()
