#include "tools/spec/spec_documents.h"

#include "transport/rc/goodput.h"

namespace verbena::tools {

std::vector<SpecDocument> PrintAllDocuments() {
  std::vector<SpecDocument> all = PrintSpec();
  all.push_back({"goodput.md", transport::rc::GoodputPage()});
  return all;
}

}  // namespace verbena::tools
