// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writing, finding and reading the file that names a job's socket.
#pragma once

#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

#include "belay/backend/host/bootstrap/bootstrap_file.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Follows from what the launcher tells every rank of a job and no other job; else from the process that started them.
[[nodiscard]] BELAY_DECL std::string bootstrap_file_name(const launcher_environment& job) {
  std::string told = std::string(job.launcher) + "/" + std::to_string(job.size);
  bool any = false;
  for (const char* variable :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_ess_base_jobid",
        "PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const char* const value = environment_variable(variable);
    if (value == nullptr || *value == '\0') continue;
    told += std::string("/") + variable + "=" + value;
    any = true;
  }
  if (!any) {
    const auto parent = read_process_status(::getppid());
    told += "/" + std::to_string(::getppid()) + "/" + std::to_string(parent ? parent->start_time : 0);
  }
  std::string name(bootstrap_file::prefix);
  append_hex(name, fnv1a().add_text(told).value(), 16);
  return name;
}

BELAY_DECL bootstrap_file bootstrap_file::write(const launcher_environment& job, const bootstrap_socket& socket,
                                                where at) {
  const std::string name = bootstrap_file_name(job);
  const file_owner owner = file_owner::this_process(at);
  std::string text = "belay 2 " + owner.text() + " " + socket.path() + " ";
  for (const auto byte : socket.secret()) append_hex(text, static_cast<unsigned char>(byte), 2);
  text += '\n';
  try {
    while (true) {
      private_directory folder = private_directory::make(folder_path(), at);
      static_cast<void>(folder.open(name, at));  // throws where the name is anything else's
      if (folder.put(name, unfinished + owner.text(), text, at)) return {::getpid(), name, std::move(folder)};
    }
  } catch (const file_error& problem) {
    throw with_base_set_aside(problem);
  }
}

BELAY_DECL bootstrap_file::content bootstrap_file::find(const launcher_environment& job, time_point until, where at) {
  const std::string name = bootstrap_file_name(job);
  while (true) {
    try {
      if (const auto folder = private_directory::find(folder_path(), at)) {
        if (auto found = read(*folder, name, at); found && found->owner.runs()) return std::move(*found);
      }
    } catch (const file_error& problem) {
      throw with_base_set_aside(problem);
    }
    if (std::chrono::steady_clock::now() >= until) {
      comm_error::details what;
      what.fault = comm_fault::timeout;
      what.culprits = {0};
      what.operation = "from_env";
      what.here = at;
      what.message = "rank 0 of " + job.text() + " wrote no file " + folder_path() + "/" + name +
                     ": was it started, on this host?" + base_set_aside();
      throw comm_error(std::move(what));
    }
    const timespec millisecond{0, 1'000'000};  // the kernel does not announce a file in a directory that is not there
    ::nanosleep(&millisecond, nullptr);
  }
}

BELAY_DECL std::optional<bootstrap_file::content> bootstrap_file::read(const private_directory& folder,
                                                                       const std::string& name, where at) {
  const unique_fd file = folder.open(name, at);
  if (!file) return std::nullopt;
  const auto refuse = [&](const char* why) {
    throw file_error(folder.path_of(name), 0, std::string("is no bootstrap file") + why, at);
  };
  char text[512];
  const ssize_t length = ::read(file.get(), text, sizeof text);
  if (length <= 0 || text[length - 1] != '\n') refuse(": cut off");
  std::string_view rest(text, static_cast<std::size_t>(length) - 1);
  const auto word = [&] {
    const std::size_t end = lesser_of(rest.find(' '), rest.size());
    const std::string_view out = rest.substr(0, end);
    rest.remove_prefix(lesser_of(end + 1, rest.size()));
    return out;
  };
  if (word() != "belay" || word() != "2") refuse(", or one of another version");
  std::string_view owner = word();
  const auto written_by = file_owner::read(owner);
  if (!written_by || !owner.empty()) refuse(": it does not say which process wrote it");
  content out;
  out.owner = *written_by;
  const std::size_t end = lesser_of(rest.rfind(' '), rest.size());  // a path may have spaces
  out.socket_path = std::string(rest.substr(0, end));
  rest.remove_prefix(lesser_of(end + 1, rest.size()));
  if (rest.size() != 2 * out.secret.size()) refuse(": its token has another length");
  for (std::size_t i = 0; i < out.secret.size(); ++i) {
    unsigned value = 0;
    const auto done = std::from_chars(rest.data() + 2 * i, rest.data() + 2 * i + 2, value, 16);
    if (done.ptr != rest.data() + 2 * i + 2) refuse(": its token is not hexadecimal");
    out.secret[i] = static_cast<token::value_type>(value);
  }
  return out;
}

BELAY_DECL bootstrap_file::~bootstrap_file() {
  if (name_.empty() || ::getpid() != owner_) return;
  folder_.remove(name_);
  folder_.remove_if_empty();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
