// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The names of signals.
#pragma once

#include <signal.h>

#include "belay/comm/signal_name.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string signal_name(int number) {
  const char* known = nullptr;
  switch (number) {
    case SIGHUP: known = "SIGHUP"; break;
    case SIGINT: known = "SIGINT"; break;
    case SIGQUIT: known = "SIGQUIT"; break;
    case SIGILL: known = "SIGILL"; break;
    case SIGTRAP: known = "SIGTRAP"; break;
    case SIGABRT: known = "SIGABRT"; break;
    case SIGBUS: known = "SIGBUS"; break;
    case SIGFPE: known = "SIGFPE"; break;
    case SIGKILL: known = "SIGKILL"; break;
    case SIGUSR1: known = "SIGUSR1"; break;
    case SIGSEGV: known = "SIGSEGV"; break;
    case SIGUSR2: known = "SIGUSR2"; break;
    case SIGPIPE: known = "SIGPIPE"; break;
    case SIGALRM: known = "SIGALRM"; break;
    case SIGTERM: known = "SIGTERM"; break;
    case SIGSTOP: known = "SIGSTOP"; break;
    case SIGTSTP: known = "SIGTSTP"; break;
    case SIGVTALRM: known = "SIGVTALRM"; break;
    case SIGPROF: known = "SIGPROF"; break;
    case SIGIO: known = "SIGIO"; break;
    case SIGXCPU: known = "SIGXCPU"; break;
    case SIGXFSZ: known = "SIGXFSZ"; break;
    case SIGSYS: known = "SIGSYS"; break;
    default: return "signal " + std::to_string(number);
  }
  return std::string(known) + " (" + std::to_string(number) + ")";
}

}  // namespace belay::inline BELAY_ABI
