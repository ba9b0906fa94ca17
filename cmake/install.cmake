# What `make install` puts where. The list of what was installed is kept by CMake in
# install_manifest.txt, from which `make uninstall` works.
install(TARGETS tierce_executable RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tierce_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tierce DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(FILES ${CMAKE_BINARY_DIR}/include/tierce/version.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tierce)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Relative to the .pc file where that works, so that a tree that was moved still does.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(TIERCE_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
else()
    set(TIERCE_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(TIERCE_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
else()
    set(TIERCE_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/tierce.pc.in ${CMAKE_BINARY_DIR}/tierce.pc.in @ONLY)
# The prefix is known only when it is installed (cmake --install --prefix).
install(CODE "
    set(prefix \"\${CMAKE_INSTALL_PREFIX}\")
    file(READ \"${CMAKE_BINARY_DIR}/tierce.pc.in\" text)
    string(REPLACE \"{{prefix}}\" \"\${prefix}\" text \"\${text}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/tierce.pc\" \"\${text}\")")
install(FILES ${CMAKE_BINARY_DIR}/tierce.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
