// SPDX-License-Identifier: Apache-2.0
// Folders that a subcommand writes whole or not at all.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace slimpack::app {

/// Checks before any work that a folder is new or empty. Throws InvalidInput naming the option.
void check_folder(std::string_view option, const std::string& path);

/// Lets `write` fill a folder beside `path`, which is then renamed, so that nobody ever finds a
/// half-written one; it is removed if anything fails. Gives the path without what is superfluous.
/// Throws InvalidInput, naming the option, where the folder cannot be made.
std::string write_folder(std::string_view option, const std::string& path,
                         const std::function<void(const std::string& folder)>& write);

}  // namespace slimpack::app
