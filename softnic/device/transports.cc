#include "softnic/device/transports.h"

#include "transport/rc/rc_qp.h"
#include "transport/uc/uc_qp.h"
#include "transport/ud/ud_qp.h"

namespace verbena::softnic {

std::unique_ptr<transport::QpTransport> MakeTransport(const transport::QpConfig& config,
                                                      transport::QpHost* host) {
  switch (config.service) {
    case Service::kRc:
      return std::make_unique<transport::RcQp>(config, host);
    case Service::kUc:
      return std::make_unique<transport::UcQp>(config, *host);
    case Service::kUd:
      return std::make_unique<transport::UdQp>(config, *host);
  }
  return nullptr;
}

}  // namespace verbena::softnic
